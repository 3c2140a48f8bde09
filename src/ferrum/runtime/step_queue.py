"""Steps in flight: prepared and settled by the thread that submits them, computed in order by another."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from ferrum.core.errors import EngineDead
from ferrum.core.step import PendingStep, StepBatch, StepOutput
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.runtime.step_passes import PreparedStep


@dataclass(slots=True, eq=False)
class StepInFlight(PendingStep):
    """A submitted step.

    Attributes:
        started: when the backend was given it ahead of the results of the step before it.
        computed: its duration in seconds, once its results are collected; None until they are asked for.
        output: once it is settled.
    """

    batch: StepBatch
    prepared: PreparedStep
    finish: Callable[[StepInFlight], None]
    started: float | None = None
    computed: Future[float] | None = None
    output: StepOutput | None = None

    def result(self) -> StepOutput:
        if self.output is None:
            self.finish(self)
        assert self.output is not None
        return self.output


class StepQueue:
    """The steps of one model that are not settled yet, oldest first, and the thread that computes them.

    Args:
        lm: the model. Its steps are run here only.
        depth: number of steps that may be in flight when another one is begun.
    """

    def __init__(self, lm: DecoderLM, depth: int) -> None:
        self._lm = lm
        self._depth = depth
        self._steps: deque[StepInFlight] = deque()
        self._thread = _thread()
        self._process = os.getpid()
        self._ended = 0.0

    def __bool__(self) -> bool:
        """Whether any step is in flight."""
        return bool(self._steps)

    @property
    def full(self) -> bool:
        """Whether the oldest step must be settled before another one begins."""
        return len(self._steps) > self._depth

    def begin(self, batch: StepBatch, finish: Callable[[StepInFlight], None]) -> StepInFlight:
        """Prepare a step and queue it.

        Args:
            batch: the step.
            finish: settles steps up to a given one.

        Raises EngineDead in a process that was forked while steps were in flight.
        """
        self._follow_fork()
        prepared = self._lm.prepare(batch)
        if self._lm.pages.needs_copies:
            # The sources may be overwritten once the copies count as made, so make them before anything else happens.
            self._wait()
            self._lm.make_copies()
        step = StepInFlight(batch, prepared, finish)
        defers = self._lm.kernels.defers
        starts = defers and self._lm.starts(prepared)
        if starts:
            self._thread.submit(self._start, step)
        if defers:
            self._compute_started()  # the backend has the next step to go on with, so results may be waited for
        if not starts:
            step.computed = self._thread.submit(self._compute, step)
        self._steps.append(step)
        return step

    def settle_oldest(self) -> StepInFlight:
        """Wait for the oldest step, and advance its sequences. Raises what computing it raised."""
        self._follow_fork()
        step = self._steps[0]
        if step.computed is None:
            self._compute_started()
        assert step.computed is not None
        seconds = step.computed.result()
        step.output = StepOutput(self._lm.settle(step.prepared).results, seconds)
        self._steps.popleft()
        return step

    def abandon(self) -> None:
        """Wait for the thread and drop all steps."""
        self._wait()
        self._steps.clear()

    def close(self) -> None:
        """Wait for the running step and end the thread."""
        if self._process == os.getpid():
            self._thread.shutdown(cancel_futures=True)

    def _compute_started(self) -> None:
        """Let the thread collect the results of the steps that the backend has."""
        for step in self._steps:
            if step.computed is None:
                step.computed = self._thread.submit(self._compute, step)

    def _wait(self) -> None:
        """Wait until every step is computed."""
        self._compute_started()
        wait([step.computed for step in self._steps if step.computed is not None])

    def _follow_fork(self) -> None:
        """Start a thread of this process if it was forked."""
        if self._process != os.getpid():
            if self._steps:
                raise EngineDead("this process was forked during a step: load another executor in it")
            self._thread, self._process = _thread(), os.getpid()

    # In the thread that computes

    def _start(self, step: StepInFlight) -> None:
        step.started = time.perf_counter()
        self._lm.start(step.prepared)

    def _compute(self, step: StepInFlight) -> float:
        """Compute a step and return its duration in seconds: from its start, or from the end of the step before it."""
        begun = time.perf_counter() if step.started is None else max(step.started, self._ended)
        self._lm.compute(step.prepared)
        self._ended = time.perf_counter()
        return self._ended - begun


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="ferrum-steps")
