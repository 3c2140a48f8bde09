"""Common base of random loads for a scheduler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random

from ferrum.core.types import TokenEvent
from ferrum.scheduler.scheduler import Scheduler


class RandomLoad(ABC):
    """A scheduler under random load, on a simulated clock.

    Attributes:
        live: choices that have not ended, as request id and number.
    """

    random: Random
    clock: float
    live: set[tuple[str, int]]
    scheduler: Scheduler

    @abstractmethod
    def take(self, events: Sequence[TokenEvent]) -> None:
        """Check events."""

    def disturb(self) -> None:
        """Abort requests and single choices, and advance the clock."""
        if self.live and self.random.random() < 0.05:
            request_id, choice = self.random.choice(sorted(self.live))
            self.take(self.scheduler.abort(request_id, choice=self.random.choice((None, choice))))
        self.clock += self.random.random()
        self.take(self.scheduler.expire(self.clock))
