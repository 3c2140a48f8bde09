"""Wakes the consumers of an event loop, a few at a time.

A consumer that is woken writes its news in the loop's next turn. If all of a large step were woken together, whoever
comes or reads meanwhile would wait for all of them to write, at each of the turns that taking a request in consists of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from ferrum.engine.stream import RequestStream

TOGETHER: Final = 4
"""Streams that are woken in one turn of the loop."""


class Waking:
    """The streams that are still to be woken, each once; those without any news before go first. Used on the loop only.

    Args:
        loop: on which the consumers run.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._first: dict[int, RequestStream] = {}
        self._others: dict[int, RequestStream] = {}

    def add(self, streams: Iterable[RequestStream]) -> None:
        """Wake these, too."""
        idle = not (self._first or self._others)
        for stream in streams:
            (self._others if stream.begun else self._first)[id(stream)] = stream
        if idle:
            self._turn()

    def _turn(self) -> None:
        for _ in range(TOGETHER):
            waiting = self._first or self._others
            if not waiting:
                return
            waiting.pop(next(iter(waiting))).wake()
        if self._first or self._others:
            self._loop.call_soon(self._turn)
