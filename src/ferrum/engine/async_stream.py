"""Requests that the engine has, as one asynchronous stream of their deltas."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Self

from ferrum.core.types import Request
from ferrum.engine.output_stream import RequestStream
from ferrum.engine.request_output import Delta
from ferrum.engine.router import QueueSlots, Router, Wake
from ferrum.text.tokenizer import Tokenizer


class _Silence:
    """Whether a reader has waited for long: one timer looks now and then, cheaper than one at each of its waits.

    Args:
        loop: runs the timer.
        patience: seconds.
        rouse: called when they are over.

    Attributes:
        long: whether they are.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, patience: float, rouse: Callable[[], None]) -> None:
        self.long = False
        self._loop = loop
        self._patience = patience
        self._rouse = rouse
        self._since = loop.time()
        self._timer = loop.call_later(patience, self._look)

    def end(self) -> None:
        """There was something to read."""
        self._since, self.long = self._loop.time(), False

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self._since + self._patience - self._loop.time()
        if left <= 0:
            self.long, left = True, self._patience
            self._rouse()
        self._timer = self._loop.call_later(left, self._look)


class AsyncStream:
    """An asynchronous iterator over (place of the request, its delta), until every request is over.

    Requests that have news take turns. Cancelling a waiting reader loses nothing: the next one goes on. What is not
    read to its end must be aborted.

    Raises:
        EngineDead, QueueFull: nothing was queued.
        RequestError: one of the ids is live.
    """

    def __init__(
        self,
        router: Router,
        tokenizer: Tokenizer | None,
        requests: Sequence[Request],
        places: QueueSlots | None = None,
    ) -> None:
        self.requests = tuple(requests)
        self._router = router
        self._waiting: asyncio.Future[None] | None = None
        self._ready: deque[int] = deque()
        self._left = len(self.requests)
        self._streams: list[RequestStream] = []
        router.check_open(0 if places is not None else len(self.requests))
        try:
            for place, request in enumerate(self.requests):
                self._streams.append(router.open(request, tokenizer, self._waker(place), places))
        except BaseException:
            self.abort()
            raise

    def _waker(self, place: int) -> Wake:
        def wake() -> None:
            self._ready.append(place)
            self._rouse()

        return wake

    def abort(self) -> None:
        """End what is not over, and free what it holds, within a step. Idempotent."""
        for stream in self._streams:
            self._router.abort(stream)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        while self._left:
            news = self._take()
            if news is not None:
                return news
            await self._wait(asyncio.get_running_loop())
        raise StopAsyncIteration

    async def beats(self, patience: float) -> AsyncGenerator[tuple[int, Delta] | None, None]:
        """The same, and None after `patience` seconds without any."""
        loop = asyncio.get_running_loop()
        silence = _Silence(loop, patience, self._rouse)
        try:
            while self._left:
                news = self._take()
                if news is not None or silence.long:
                    yield news
                    silence.end()
                else:
                    await self._wait(loop)
        finally:
            silence.stop()

    def _take(self) -> tuple[int, Delta] | None:
        """The next news, if there are any."""
        while self._ready:
            place = self._ready.popleft()
            delta = self._streams[place].take()
            if delta is not None:
                self._ready.append(place)  # it may have more, of another choice
                if delta.usage is not None:
                    self._end_one()
                return place, delta
        return None

    def _end_one(self) -> None:
        """One request more is over; after the last one their streams are let go, which know this reader again."""
        self._left -= 1
        if not self._left:
            self._streams.clear()

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until a request has news, or the reader is roused."""
        self._waiting = loop.create_future()
        await self._waiting

    def _rouse(self) -> None:
        waiting = self._waiting
        if waiting is not None and not (waiting.done() or waiting.get_loop().is_closed()):
            waiting.set_result(None)
