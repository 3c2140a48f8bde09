"""Timeouts of HTTP connections that uvicorn lacks: headers, unread bodies and unread responses.

uvicorn's keep-alive timeout covers the time between requests; `http_guard` limits the time of bodies.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import ApiError

PROGRESS_CHECKS: Final = 4
"""Checks for progress within `write_seconds`."""


class TimeoutProtocol(H11Protocol):
    """uvicorn's protocol with timeouts for slow clients.

    - Headers: from the connection, or the first byte of a later request.
    - Rest of a body whose request is already answered.
    - Response: time in which the client reads nothing; any progress restarts it.

    Args:
        head_seconds: limit for headers.
        body_seconds: limit for the rest of a body.
        write_seconds: limit for a pause in reading the response.
        dialect: of the errors for invalid HTTP, which may have no path.
        options: uvicorn's.
    """

    def __init__(
        self, *, head_seconds: float, body_seconds: float, write_seconds: float, dialect: Dialect, **options: Any
    ) -> None:
        super().__init__(**options)
        self._head_seconds = head_seconds
        self._body_seconds = body_seconds
        self._dialect = dialect
        self._timer: asyncio.TimerHandle | None = None
        self._write_seconds = write_seconds
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # report any waiting byte to pause_writing
        self._start_timer(self._head_seconds)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        between = self.conn.their_state is h11.IDLE
        if not between and self.conn.our_state is not h11.DONE:
            self._stop_timer()
        elif self._timer is None:
            self._start_timer(self._head_seconds if between else self._body_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_checks()
        super().connection_lost(exc)
        # Breaks a reference cycle of asyncio's transport with its own method.
        self.loop.call_soon(vars(self.transport).pop, "_read_ready_cb", None)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._schedule_check(self._unsent(), PROGRESS_CHECKS)

    def resume_writing(self) -> None:
        self._stop_checks()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP in the JSON form of other errors."""
        body = self._dialect.error(ApiError(400, msg, code="invalid_http"))
        kind, length = (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())
        head = h11.Response(status_code=400, headers=[kind, length, (b"connection", b"close")], reason=b"Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _schedule_check(self, unsent: int, checks: int) -> None:
        """Cut the connection after this many checks without progress."""
        if checks:
            self._write_timer = self.loop.call_later(
                self._write_seconds / PROGRESS_CHECKS, self._check_progress, unsent, checks
            )
        else:
            self.transport.abort()

    def _check_progress(self, before: int, checks: int) -> None:
        unsent = self._unsent()
        self._schedule_check(unsent, PROGRESS_CHECKS if unsent < before else checks - 1)

    def _unsent(self) -> int:
        """Return the bytes that the client has not acknowledged, here and in the kernel.

        The kernel asks for more data only when much of its buffer is free, so the buffer here would hide slow progress.
        """
        here, connection = self.transport.get_write_buffer_size(), self.transport.get_extra_info("socket")
        try:
            (in_kernel,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
        except OSError:  # some systems lack this for sockets
            return here
        return here + int(in_kernel)

    def _stop_checks(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
