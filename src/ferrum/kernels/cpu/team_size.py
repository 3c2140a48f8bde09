"""The number of threads of a step: all of them, or fewer on a crowded machine.

A step has many barriers, and each waits for the slowest thread. If other processes want the same cores, the system
preempts one thread for some milliseconds now and then, and the others wait. Fewer threads are then faster.
"""

from __future__ import annotations

from collections.abc import Callable

from ferrum.core.policy_config import POLICY, PolicyConfig

try:
    import resource
except ImportError:  # not every system has it
    resource = None  # type: ignore[assignment]


def count_preemptions() -> int:
    """Return how often the system preempted this thread so far; 0 if the system does not count it."""
    which = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if which is None else resource.getrusage(which).ru_nivcsw


class TeamSize:
    """Policy for the number of threads, from the preemptions of the thread that runs the steps.

    Args:
        max_threads: size of the whole team.
        preemptions: counts the preemptions of the calling thread.
        policy: rates and intervals.

    Attributes:
        threads: for the next step.
    """

    def __init__(
        self, max_threads: int, preemptions: Callable[[], int] = count_preemptions, policy: PolicyConfig = POLICY
    ) -> None:
        self.threads = max_threads
        self._max_threads, self._preemptions, self._policy = max_threads, preemptions, policy
        self._before, self._seconds = preemptions(), 0.0
        self._patience, self._calm = 1, 0
        self._grown = False

    def observe(self, seconds: float) -> None:
        """Record the duration of a step, and adapt the team once per interval."""
        self._seconds += seconds
        if self._seconds < self._policy.team_interval_seconds:
            return
        now = self._preemptions()
        rate = (now - self._before) / self._seconds
        self._before, self._seconds = now, 0.0
        grown, self._grown = self._grown, False
        if rate >= self._policy.team_crowded_rate:
            if grown:  # the last growth did not hold: wait twice as long before the next one
                self._patience = min(2 * self._patience, self._policy.team_max_patience)
            self._calm, self.threads = 0, max(1, self.threads // 2)
        elif rate <= self._policy.team_calm_rate:
            self._grow()

    def _grow(self) -> None:
        if self.threads == self._max_threads:
            self._patience = max(1, self._patience // 2)
            return
        self._calm += 1
        if self._calm >= self._patience:
            self._calm, self._grown = 0, True
            self.threads = min(self._max_threads, 2 * self.threads)
