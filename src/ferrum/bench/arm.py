"""Engines that are stepped by hand, in turns, so that a slow moment of the machine meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from queue import SimpleQueue

from ferrum.core.types import Request, TokenEvent
from ferrum.engine.engine import Engine
from ferrum.engine.hosts.host import Built
from ferrum.engine.messages import Events, Message


class Arm:
    """An engine without a thread of its own.

    Args:
        built: its executor and scheduler. Arms may share an executor: one steps while the others wait.

    Attributes:
        scheduler: of the engine.
        said: tokens since `begin`, over all requests.
        seconds, busy, steps: of its turns since `begin` or `reset`, by the clock and by processor time of this process.
    """

    def __init__(self, built: Built) -> None:
        self.scheduler = built.scheduler
        self.said = 0
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._events: list[TokenEvent] = []
        self._engine = Engine(built.executor, built.scheduler, inbox=self._inbox, post=self._take)
        self.reset()

    def _take(self, news: Events) -> None:
        self._events += news.events
        self.said += sum(len(event.token_ids) for event in news.events)

    @property
    def begun(self) -> int:
        """Requests that have said anything."""
        return len({event.request_id for event in self._events})

    @property
    def running(self) -> bool:
        """Whether anything is still to come."""
        return self.scheduler.has_work or not self._inbox.empty()

    def reset(self) -> None:
        """Count turns anew."""
        self.seconds, self.busy, self.steps = 0.0, 0.0, 0

    def begin(self, requests: Iterable[Request]) -> None:
        """Queue requests, and forget those before."""
        self._events.clear()
        self.said = 0
        for request in requests:
            self._inbox.put(request)
        self.reset()

    def turn(self) -> None:
        """One step."""
        begun, busy = time.perf_counter(), time.process_time()
        self._engine.step()
        self.seconds += time.perf_counter() - begun
        self.busy += time.process_time() - busy
        self.steps += 1

    def answers(self) -> dict[str, tuple[int, ...]]:
        """The tokens of each request. Raises the error of any."""
        told: dict[str, tuple[int, ...]] = {}
        for event in self._events:
            if event.error is not None:
                raise event.error
            told[event.request_id] = told.get(event.request_id, ()) + event.token_ids
        return told


def race(arms: Sequence[Arm]) -> None:
    """Step all to their ends. Whoever has said less is next; of those that have said as much, the first one."""
    while running := [arm for arm in arms if arm.running]:
        min(running, key=lambda arm: arm.said).turn()
