"""Requests that the engine has, as one asynchronous stream of their deltas."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Self

from ferrum.core.types import Request
from ferrum.engine.outputs import Delta
from ferrum.engine.router import Router, Wake
from ferrum.engine.stream import RequestStream
from ferrum.text.tokenizer import Tokenizer


class Running:
    """An asynchronous iterator over (place of the request, its delta), until every request is over.

    Requests that have news take turns. Cancelling a waiting reader loses nothing: the next one goes on. What is not
    read to its end must be aborted.

    Raises:
        EngineDead, QueueFull: nothing was queued.
        RequestError: one of the ids is live.
    """

    def __init__(self, router: Router, tokenizer: Tokenizer | None, requests: Sequence[Request]) -> None:
        self.requests = tuple(requests)
        self._router = router
        self._news = asyncio.Event()
        self._ready: deque[int] = deque()
        self._left = len(self.requests)
        self._streams: list[RequestStream] = []
        router.check_open(len(self.requests))
        try:
            for place, request in enumerate(self.requests):
                self._streams.append(router.open(request, tokenizer, self._waker(place)))
        except BaseException:
            self.abort()
            raise

    def _waker(self, place: int) -> Wake:
        def wake() -> None:
            self._ready.append(place)
            self._news.set()

        return wake

    def abort(self) -> None:
        """End what is not over, and free what it holds, within a step. Idempotent."""
        for stream in self._streams:
            self._router.abort(stream)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        while self._left:
            if not self._ready:
                self._news.clear()
                await self._news.wait()
                continue
            place = self._ready.popleft()
            delta = self._streams[place].take()
            if delta is not None:
                self._ready.append(place)  # it may have more, of another choice
                self._left -= delta.usage is not None
                return place, delta
        raise StopAsyncIteration
