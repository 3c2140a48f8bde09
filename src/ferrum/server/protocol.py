"""HTTP connections that do not wait for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class PunctualProtocol(H11Protocol):
    """uvicorn's connection, which is closed when the head of a request takes too long to arrive.

    The time begins with the connection and, for later requests, with their first byte; between them uvicorn's own
    keep-alive limit holds.

    Args:
        head_seconds: longest time for a head.
        options: uvicorn's.
    """

    def __init__(self, *, head_seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._head_seconds = head_seconds
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._head_timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_timer()
        super().connection_lost(exc)
        # asyncio's transport knows itself by a method of its own: it would wait for a search for garbage.
        self.loop.call_soon(vars(self.transport).pop, "_read_ready_cb", None)

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._head_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
