"""Wakes the consumers of an event loop, a few at a time.

A consumer that is woken writes its news in the loop's next turn. If all of a large step were woken together, whoever
comes or reads meanwhile would wait for all of them to write, at each of the turns that taking a request in consists of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from ferrum.core.errors import RequestError
from ferrum.engine.output_stream import RequestStream

TOGETHER: Final = 4
"""Streams that are woken in one turn of the loop."""

SHARE: Final = 0.25
"""The part of the loop's time that those who had news before may take."""


class Waking:
    """The streams that are still to be woken, each once; those without any news before go first. Used on the loop only.

    The others are woken in rounds. The loop leaves them alone after each for as long as `SHARE` says, of what writing
    to them took: next to nothing for a few streams, and steps of a small model where there are many. They lose nothing:
    to write the tokens of three steps costs hardly more than to write one. What the loop does for others meanwhile does
    not count: a burst of newcomers would hold up everybody else three times as long again.

    Args:
        loop: on which the consumers run.
        clock: seconds that this thread has computed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.thread_time) -> None:
        self._loop = loop
        self._clock = clock
        self._first: dict[int, RequestStream] = {}
        self._round: dict[int, RequestStream] = {}
        self._others: dict[int, RequestStream] = {}
        self._began = 0.0
        self._spent = 0.0
        self._turning = False
        self._pausing = False

    def add(self, streams: Iterable[RequestStream]) -> None:
        """Wake these, too."""
        for stream in streams:
            if not stream.begun:
                self._first[id(stream)] = stream
            elif id(stream) not in self._round:
                self._others[id(stream)] = stream
        self._begin()

    def _begin(self) -> None:
        if not (self._round or self._pausing):
            self._round, self._others = self._others, self._round
        if not self._turning and (self._first or self._round):
            self._turning = True
            self._turn()

    def _turn(self) -> None:
        """Wake a few. They write in the loop's next turn, one after the other, between the two that time them."""
        goes_on = bool(self._round)
        self._loop.call_soon(self._before_writing)
        try:
            for _ in range(TOGETHER):
                waiting = self._first or self._round
                if waiting:
                    waiting.pop(next(iter(waiting))).wake()
        finally:  # a consumer that cannot be woken is for the loop to tell of; the others are woken all the same
            self._loop.call_soon(self._after_writing, goes_on)

    def _before_writing(self) -> None:
        self._began = self._clock()

    def _after_writing(self, goes_on: bool) -> None:
        """Add up what a round takes, of whose streams some have written; after the last ones comes the pause."""
        if goes_on:
            self._spent += self._clock() - self._began
            if not self._round:
                self._pausing = True
                self._loop.call_later(self._spent * (1 / SHARE - 1), self._go_on)
                self._spent = 0.0
        self._turning = False
        self._begin()

    def _go_on(self) -> None:
        self._pausing = False
        self._begin()


class ReadingLoop:
    """The event loop on which the streams of one client are read, one at a time. It holds nothing of that client: a
    client that nobody uses any more is to end, and its engine with it.
    """

    def __init__(self) -> None:
        self._waking: tuple[asyncio.AbstractEventLoop, Waking] | None = None

    def turn_to(self, loop: asyncio.AbstractEventLoop, live: int) -> None:
        """Streams are opened on this loop from now on, of which so many are live.

        Raises:
            RequestError: those are of another loop, which still runs.
        """
        if self._waking is not None:
            if self._waking[0] is loop:
                return
            # Of a loop that is closed nobody reads any more, whatever the engine is yet to hear of that.
            if live and not self._waking[0].is_closed():
                raise RequestError("requests of another event loop are live")
        self._waking = loop, Waking(loop)

    def wake_all(self, streams: Sequence[RequestStream]) -> None:
        """Wake the consumers of a step; called from any thread."""
        assert self._waking is not None  # a stream was opened on it
        loop, waking = self._waking
        with suppress(RuntimeError):  # a loop that is closed has nobody left to wake
            loop.call_soon_threadsafe(waking.add, streams)
