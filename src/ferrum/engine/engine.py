"""The engine's loop: requests in, steps through the executor, events out.

    drain the inbox; plan; submit; commit; post the events

One thread runs it. It decides nothing: who runs next is the scheduler's business, how a step is computed the
executor's, and what becomes of the tokens the client's.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from queue import Empty
from typing import Final, Protocol

from ferrum.core.errors import FerrumError, StepError
from ferrum.core.step import PendingStep, StepBatch
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.engine.hosts.inbox import Inbox
from ferrum.engine.messages import Abort, EngineStats, Events, Message, Shutdown
from ferrum.engine.records.step_shares import TakenStep, taken_step
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.step_plan import Plan

STALLED_SECONDS: Final = 0.05
"""How long the loop sleeps when there are requests but nothing can be planned: the resolution of deadlines then."""

STATS_SECONDS: Final = 0.1
"""How long an engine works on without statistics: gathering them takes a part of a step, and they are for scrapers."""


class Submits(Protocol):
    """All that the loop needs of an executor."""

    def submit(self, batch: StepBatch) -> PendingStep:
        """Start a step."""
        ...


class Engine:
    """Runs a scheduler's plans on an executor.

    Args:
        executor: runs the steps. It isolates failures span by span; an exception out of it ends the step's sequences.
        scheduler: owns the books of all live sequences.
        inbox: messages from any thread, in order.
        post: takes the events of a step, of which there may be none, and at times how the engine stands; once per step,
            and for news between steps.
        depth: how many steps may be submitted and not committed when the next is planned (0 on the CPU).
        recorded: tell what was in every step, too.
        clock: monotonic seconds; deadlines are measured on it.
    """

    def __init__(
        self,
        executor: Submits,
        scheduler: Scheduler,
        *,
        inbox: Inbox,
        post: Callable[[Events], None],
        depth: int = 0,
        recorded: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._inbox = inbox
        self._post = post
        self._depth = depth
        self._clock = clock
        self._submitted: deque[tuple[Plan, PendingStep | FerrumError]] = deque()
        self._step_tokens: list[int] = []
        self._recorded = recorded
        self._taken_steps: list[TakenStep] = []
        self._committed = 0
        self._open = True
        self._told_usage, self._stats_due = scheduler.kv_usage, -math.inf

    def run(self) -> None:
        """Step until a `Shutdown` has been served; sleep while there is nothing to do."""
        message: Message | None = None
        while self._open:
            busy = self.step(message)
            message = None if busy or not self._open else self._wait()

    def step(self, message: Message | None = None) -> bool:
        """One turn of the loop, beginning with `message` where there is one; whether there was anything to compute."""
        events = [] if message is None else self._take(message)
        events += self._drain_inbox()
        plan = self._scheduler.plan() if self._open else None
        if plan is not None:
            self._mark(plan)
            self._submitted.append((plan, self._submit(plan)))
        before = len(self._submitted)
        while len(self._submitted) > (0 if plan is None else self._depth):
            events += self._commit(*self._submitted.popleft())
        now = self._clock()
        events += self._scheduler.expire(now)
        if not self._open:
            events += self._scheduler.drain(FinishReason.ABORT)
        for event in events:
            _let_go_of_frames(event.error)
        # Pages that nobody waited for any more are given back in a turn of their own, and none may follow.
        if events or len(self._submitted) < before or (plan is None and self._scheduler.kv_usage != self._told_usage):
            rests = plan is None or not self._scheduler.has_work
            stats = self._stats(now) if rests or now >= self._stats_due else None
            self._post(Events(tuple(events), stats, tuple(self._taken_steps)))
            self._taken_steps.clear()
        return before > 0

    def _stats(self, now: float) -> EngineStats:
        """How the engine stands, and the steps since the last time that it was asked for."""
        scheduler = self._scheduler
        stats = EngineStats(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_usage=scheduler.kv_usage,
            preemptions=scheduler.preemptions,
            prefixes=scheduler.prefix_counts,
            speculation=scheduler.drafter.counts,
            step_tokens=tuple(self._step_tokens),
        )
        self._step_tokens.clear()
        self._told_usage, self._stats_due = stats.kv_usage, now + STATS_SECONDS
        return stats

    def _mark(self, plan: Plan) -> None:
        """Note the size of a step, and who leaves the queue with it."""
        self._step_tokens.append(plan.batch.total_tokens)
        now = self._clock()
        for sequence in plan.sequences:
            if sequence.scheduled is None:
                sequence.scheduled = now

    def _wait(self) -> Message | None:
        """Sleep until a message comes, or until it is time to look at the deadlines of stalled requests again."""
        try:
            return self._inbox.get(timeout=STALLED_SECONDS if self._scheduler.has_work else None)
        except Empty:
            return None

    def _drain_inbox(self) -> list[TokenEvent]:
        events: list[TokenEvent] = []
        while not self._inbox.empty():
            events += self._take(self._inbox.get())
        return events

    def _take(self, message: Message) -> list[TokenEvent]:
        match message:
            case Request():
                return self._add(message)
            case Abort(request_id, choice):
                return self._scheduler.abort(request_id, choice=choice)
            case Shutdown():
                self._open = False
        return []

    def _add(self, request: Request) -> list[TokenEvent]:
        """Hand a request to the scheduler; one that it refuses ends here, every choice with the reason."""
        try:
            self._scheduler.add(request)
        except FerrumError as error:
            return [
                TokenEvent(
                    request.request_id,
                    choice,
                    finish_reason=FinishReason.ERROR,
                    error=error,
                    trace_id=request.trace_id,
                )
                for choice in range(request.params.n)
            ]
        return []

    def _submit(self, plan: Plan) -> PendingStep | FerrumError:
        try:
            return self._executor.submit(plan.batch)
        except Exception as error:  # noqa: BLE001 - whatever a step dies of, it may not take the other requests with it
            return as_step_error(error)

    def _commit(self, plan: Plan, step: PendingStep | FerrumError) -> list[TokenEvent]:
        if isinstance(step, FerrumError):
            return self._scheduler.fail(plan, step)
        try:
            output = step.result()
        except Exception as error:  # noqa: BLE001 - as in _submit
            return self._scheduler.fail(plan, as_step_error(error))
        self._committed += 1
        if self._recorded:
            self._taken_steps.append(taken_step(self._committed, plan, output))
        return self._scheduler.commit(plan, output)


def as_step_error(error: Exception) -> FerrumError:
    """The error itself where it is one of ours, else a `StepError` that tells of it and can cross a process border."""
    return error if isinstance(error, FerrumError) else StepError(f"{type(error).__name__}: {error}")


def _let_go_of_frames(error: FerrumError | None) -> None:
    """Whoever keeps an outcome would keep the step that failed, too, with the model and its pool."""
    if error is not None:
        error.__traceback__ = error.__context__ = error.__cause__ = None
