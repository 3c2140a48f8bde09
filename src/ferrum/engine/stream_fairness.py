"""Wakes the consumers of an event loop a few per turn, so that new requests get their turns in between.

Streams and their consumers are elsewhere (`output_stream`, `async_stream`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ferrum.core.errors import RequestError
from ferrum.core.policy_config import POLICY
from ferrum.engine.output_stream import RequestStream


class StreamWaker:
    """Streams to be woken, each once; those whose client has nothing yet come first. Used on the loop's thread only.

    Waking all streams of a large step at once would delay everything else on the loop until all have written.

    Args:
        loop: the event loop of the consumers.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._first: dict[int, RequestStream] = {}
        self._others: dict[int, RequestStream] = {}
        self._turning = False

    def add(self, streams: Iterable[RequestStream]) -> None:
        """Wake these streams soon."""
        for stream in streams:
            (self._others if stream.begun else self._first)[id(stream)] = stream
        if not self._turning:
            self._turn()

    def _turn(self) -> None:
        for _ in range(POLICY.streams_per_turn):
            if queue := self._first or self._others:
                self._loop.call_soon(queue.pop(next(iter(queue))).wake)
        self._turning = bool(self._first or self._others)
        if self._turning:
            self._loop.call_soon(self._turn)


class ReadingLoop:
    """The event loop on which one client's streams are read, one loop at a time.

    It holds no reference to the client: an unused client must be collected, and its engine with it.
    """

    def __init__(self) -> None:
        self._waker: tuple[asyncio.AbstractEventLoop, StreamWaker] | None = None

    def bind(self, loop: asyncio.AbstractEventLoop, num_live: int) -> None:
        """Open streams on this loop from now on.

        Args:
            loop: the event loop.
            num_live: live streams of the loop so far.

        Raises:
            RequestError: there are live streams, and their loop still runs.
        """
        if self._waker is not None:
            if self._waker[0] is loop:
                return
            # The streams of a closed loop have no readers, even if the engine has not ended them yet.
            if num_live and not self._waker[0].is_closed():
                raise RequestError(f"{num_live} requests of another event loop are live: finish or abort them first")
        self._waker = loop, StreamWaker(loop)

    def wake_all(self, streams: Sequence[RequestStream]) -> None:
        """Wake the consumers of a step. Called from any thread."""
        assert self._waker is not None  # a stream was opened on it
        loop, waker = self._waker
        with suppress(RuntimeError):  # a closed loop has no consumers
            loop.call_soon_threadsafe(waker.add, streams)
