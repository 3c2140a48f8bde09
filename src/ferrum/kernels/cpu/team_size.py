"""The number of threads of a step.

A step has many barriers, and each waits for the slowest thread. On a crowded machine the system preempts one thread now
and then, and fewer threads are faster where barriers are near each other. Where they are far apart the other threads
take the pieces of the preempted one meanwhile, so it costs no more than the time that the other process gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import NamedTuple

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
    """Policy for the number of threads of short steps, from the preemptions of the thread that runs the steps.

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

    def ignore(self, preemptions: int) -> None:
        """Leave out preemptions that no observed step had."""
        self._before += preemptions

    def _grow(self) -> None:
        if self.threads == self._max_threads:
            self._patience = max(1, self._patience // 2)
            return
        self._calm += 1
        if self._calm >= self._patience:
            self._calm, self._grown = 0, True
            self.threads = min(self._max_threads, 2 * self.threads)


class StepTeam:
    """The threads of each step: all for a step whose barriers are far apart, else as `TeamSize` says.

    Args:
        max_threads: size of the whole team.
        preemptions, policy: as of `TeamSize`.
    """

    def __init__(
        self, max_threads: int, preemptions: Callable[[], int] = count_preemptions, policy: PolicyConfig = POLICY
    ) -> None:
        self._max_threads, self._preemptions, self._policy = max_threads, preemptions, policy
        self._short = TeamSize(max_threads, preemptions, policy)
        self._row_seconds: dict[int, float] = {}
        self._step = _Step(1, max_threads, None, 0.0, 0.0)

    def begin(self, rows: int, operations: int) -> int:
        """Return the number of threads for a step of that many rows and operations. Each ends with a barrier.

        The first step of a size takes all threads.
        """
        seconds = self._row_seconds.get(rows.bit_length(), math.inf) * rows / operations
        is_long = seconds >= self._policy.team_long_operation_seconds
        threads = self._max_threads if is_long else self._short.threads
        before = self._preemptions() if is_long else None
        self._step = _Step(rows, threads, before, perf_counter(), thread_time())
        return threads

    def end(self) -> None:
        """Learn from the step that has begun last."""
        step = self._step
        # Processor time, which preemptions do not lengthen. The least counts, because waiting at barriers does.
        seconds = (thread_time() - step.busy) * step.threads / self._max_threads / step.rows
        size = step.rows.bit_length()
        self._row_seconds[size] = min(self._row_seconds.get(size, seconds), seconds)
        if step.preemptions is None:
            self._short.observe(perf_counter() - step.begun)
        else:
            self._short.ignore(self._preemptions() - step.preemptions)


class _Step(NamedTuple):
    """A step that has begun: its rows and threads, preemptions before a long one, clock and processor time."""

    rows: int
    threads: int
    preemptions: int | None
    begun: float
    busy: float
