"""Engines stepped by hand in turns, so that a slow moment of the machine affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from queue import SimpleQueue

from ferrum.core.types import Request, TokenEvent
from ferrum.engine.engine import Engine
from ferrum.engine.host import Built
from ferrum.engine.messages import Events, Message


class Arm:
    """An engine without a thread.

    Args:
        built: its executor and scheduler. Arms may share an executor, since only one steps at a time.

    Attributes:
        scheduler: of the engine.
        generated: tokens since `begin`, over all requests.
        seconds, busy, steps: of its turns since `begin` or `reset`, by the clock and by this process's CPU time.
    """

    def __init__(self, built: Built) -> None:
        self.scheduler = built.scheduler
        self.generated = 0
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._events: list[TokenEvent] = []
        self._engine = Engine(built.executor, built.scheduler, inbox=self._inbox, post=self._take)
        self.reset()

    def _take(self, posted: Events) -> None:
        self._events += posted.events
        self.generated += sum(len(event.token_ids) for event in posted.events)

    @property
    def begun(self) -> int:
        """The number of requests that have a token."""
        return len({event.request_id for event in self._events})

    @property
    def running(self) -> bool:
        """Whether a request is unfinished."""
        return self.scheduler.has_work or not self._inbox.empty()

    def reset(self) -> None:
        """Set the counters of turns to zero."""
        self.seconds, self.busy, self.steps = 0.0, 0.0, 0

    def begin(self, requests: Iterable[Request]) -> None:
        """Queue requests and drop earlier results."""
        self._events.clear()
        self.generated = 0
        for request in requests:
            self._inbox.put(request)
        self.reset()

    def turn(self) -> None:
        """Run one step."""
        begun, busy = time.perf_counter(), time.process_time()
        self._engine.step()
        self.seconds += time.perf_counter() - begun
        self.busy += time.process_time() - busy
        self.steps += 1

    def answers(self) -> dict[str, tuple[int, ...]]:
        """Return the tokens of each request. Raises the error of any."""
        found: dict[str, tuple[int, ...]] = {}
        for event in self._events:
            if event.error is not None:
                raise event.error
            found[event.request_id] = found.get(event.request_id, ()) + event.token_ids
        return found


def race(arms: Sequence[Arm]) -> None:
    """Step all arms to their ends; the arm with the fewest generated tokens is next."""
    while running := [arm for arm in arms if arm.running]:
        min(running, key=lambda arm: arm.generated).turn()
