"""HTTP connections that do not wait for ever."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ferrum.server.error_replies import ApiError

LOOKS: Final = 4
"""How often it is looked, within the time that a client may take nothing, whether it has taken something."""


class PunctualProtocol(H11Protocol):
    """uvicorn's connection, which is closed when the head of a request takes too long to arrive.

    The time begins with the connection and, for later requests, with their first byte; between them uvicorn's own
    keep-alive limit holds. It is closed as well when the rest of a body takes too long whose request is answered, for
    nobody reads it. A connection whose client takes nothing of what is sent is cut; what the client does take, however
    little, gives it the whole time again.

    Args:
        head_seconds: longest time for a head.
        body_seconds: longest time for such a rest.
        write_seconds: longest time without a byte being taken while some are waiting.
        options: uvicorn's.
    """

    def __init__(self, *, head_seconds: float, body_seconds: float, write_seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._head_seconds = head_seconds
        self._body_seconds = body_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._write_seconds = write_seconds
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # whatever waits, a small rest too, is watched
        self._start_timer(self._head_seconds)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        between = self.conn.their_state is h11.IDLE
        if not between and self.conn.our_state is not h11.DONE:
            self._stop_timer()
        elif self._timer is None:
            self._start_timer(self._head_seconds if between else self._body_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_timer()
        self._stop_watching()
        super().connection_lost(exc)
        # asyncio's transport knows itself by a method of its own: it would wait for a search for garbage.
        self.loop.call_soon(vars(self.transport).pop, "_read_ready_cb", None)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        self._watch(self._unsent(), LOOKS)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._stop_watching()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """See uvicorn: what is no HTTP is told so as other faults are told."""
        body = ApiError(400, msg, code="invalid_http").body()
        kind, length = (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())
        head = h11.Response(status_code=400, headers=[kind, length, (b"connection", b"close")], reason=b"Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self, unsent: int, looks: int) -> None:
        """Cut the connection after so many looks that see no fewer bytes unsent."""
        if looks:
            self._write_timer = self.loop.call_later(self._write_seconds / LOOKS, self._look, unsent, looks)
        else:
            self.transport.abort()

    def _look(self, before: int, looks: int) -> None:
        unsent = self._unsent()
        self._watch(unsent, LOOKS if unsent < before else looks - 1)

    def _unsent(self) -> int:
        """Bytes that the client's machine has not taken, here and in the kernel, which asks for more of them late."""
        here, connection = self.transport.get_write_buffer_size(), self.transport.get_extra_info("socket")
        try:
            (in_kernel,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
        except OSError:  # not every system tells it of connections
            return here
        return here + int(in_kernel)

    def _stop_watching(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
