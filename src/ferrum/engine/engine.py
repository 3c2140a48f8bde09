"""The engine's loop: requests in, steps through the executor, events out.

    drain the inbox; plan; submit; commit; post the events

One thread runs it. The scheduler decides what runs, the executor computes it, clients decode the tokens.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Final

from ferrum.core.errors import EngineDead, FerrumError, RequestError, as_step_error
from ferrum.core.step import PendingStep
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.engine.held_adapters import DEFAULT_ADAPTER_BYTES, HeldAdapters
from ferrum.engine.held_images import DEFAULT_IMAGE_BYTES, SLICE_SECONDS, HeldImages, StoredRows, Tower
from ferrum.engine.inbox import Inbox
from ferrum.engine.messages import (
    Abort,
    AdapterRead,
    Compiled,
    ComputedStep,
    EngineStats,
    Events,
    ImagePrepared,
    LoadAdapter,
    Lost,
    Message,
    Report,
    Shutdown,
    UnloadAdapter,
    computed_step,
)
from ferrum.engine.waiting_requests import CompilingRequests, WaitingRequests, last_events
from ferrum.scheduler.guides import Guides, StartGuide
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.step_plan import StepPlan

if TYPE_CHECKING:
    from ferrum.engine.engine_executor import EngineExecutor

STALLED_SECONDS: Final = 0.05
"""Sleep of the loop while requests exist but none can be planned; deadlines have this resolution then."""

STATS_SECONDS: Final = 0.1
"""Interval of statistics while steps run, since gathering them costs a part of a step."""


class Engine:
    """The loop that runs a scheduler's plans on an executor.

    Args:
        executor: runs the steps.
        scheduler: owns the state of all live sequences.
        inbox: messages from any thread, in order.
        post: receives the events of every step, events between steps, statistics at intervals, and other replies.
        guides: make the guides of requests with limits; None: such requests are refused.
        depth: maximum number of uncommitted steps when the next one is planned.
        recorded: include the contents of every step in reports.
        adapter_bytes: limit of the adapters in memory.
        open_tower, image_bytes, image_rows: see `HeldImages`, whose limit and stored rows the last ones are.
        clock: monotonic seconds, for deadlines.

    Attributes:
        steps: number of submitted steps.
        steps_ahead: number of those that were submitted while another one was in flight.
    """

    def __init__(
        self,
        executor: EngineExecutor,
        scheduler: Scheduler,
        *,
        inbox: Inbox,
        post: Callable[[Report], None],
        guides: Guides | None = None,
        depth: int = 0,
        recorded: bool = False,
        adapter_bytes: int = DEFAULT_ADAPTER_BYTES,
        open_tower: Callable[[], Tower] | None = None,
        image_bytes: int = DEFAULT_IMAGE_BYTES,
        image_rows: StoredRows | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._inbox = inbox
        self._post = post
        self._compiling = CompilingRequests(guides, inbox)
        self._adapters = HeldAdapters(executor, inbox, adapter_bytes, partial(_is_live, scheduler, self._compiling))
        self._images = HeldImages(open_tower, inbox, image_bytes, image_rows, clock)
        self._outside: tuple[WaitingRequests, ...] = (self._images.waiting, self._adapters.waiting, self._compiling)
        self._depth = depth
        self._clock = clock
        self._submitted: deque[tuple[StepPlan, PendingStep | FerrumError]] = deque()
        self._step_tokens: list[int] = []
        self._recorded = recorded
        self._computed_steps: list[ComputedStep] = []
        self._committed = 0
        self.steps = self.steps_ahead = 0
        self._open = True
        self._reported_usage, self._stats_due = scheduler.kv_usage, -math.inf

    def run(self) -> None:
        """Step until a `Shutdown` has been handled; sleep while there is nothing to do."""
        message: Message | None = None
        try:
            while self._open:
                busy = self.step(message)
                message = None if busy or not self._open else self._wait()
        finally:
            self._adapters.close()
            self._images.close()

    def step(self, message: Message | None = None) -> bool:
        """Run one iteration, starting with `message` if given; return whether a step was, or an image is computed."""
        events = [] if message is None else self._take(message)
        events += [] if self._inbox.empty() else self._drain_inbox()
        events += self._begin_waiting()
        plan = self._scheduler.plan() if self._open else None
        if plan is not None:
            self._mark(plan)
            self._submitted.append((plan, self._submit(plan)))
        before = len(self._submitted)
        while len(self._submitted) > (0 if plan is None or self._images.computing else self._depth):
            events += self._commit(*self._submitted.popleft())
        now = self._clock()
        events += self._expire(now)
        if ended := _drop_frames(events):
            self._adapters.release()
        # An iteration may only release pages, and the loop may sleep after it: report their usage now.
        released = plan is None and self._scheduler.kv_usage != self._reported_usage
        if events or len(self._submitted) < before or released:
            due = now >= self._stats_due or plan is None or (ended and not self._scheduler.has_work)
            stats = self._stats(now) if due else None
            self._post(Events(tuple(events), stats, tuple(self._computed_steps)))
            self._computed_steps.clear()
        return before > 0 or self._images.computing

    def _begin_waiting(self) -> list[TokenEvent]:
        """Run a slice of the tower, while no step is in flight; begin requests whose rows or adapters are there."""
        events = self._images.advance(SLICE_SECONDS) if self._images.computing else []
        for request, left in self._images.ready() if self._images.waiting else ():
            events += self._begin_seen(request, left)
        return events + (self._begin_adapted() if self._adapters.waiting else [])

    def _expire(self, now: float) -> list[TokenEvent]:
        """End requests whose deadline has passed; all of them once the engine is shut down."""
        if not self._open:
            events = [event for each in self._outside for event in each.abort_all()]
            return events + self._scheduler.drain(FinishReason.ABORT)
        events = self._scheduler.expire(now)
        for each in self._outside:
            if each:
                events += each.expire(now)
        return events

    def _stats(self, now: float) -> EngineStats:
        """Return statistics with the steps since the last ones."""
        live = self._scheduler.live
        stats = EngineStats(
            running=len(live.running),
            waiting=len(live.waiting) + sum(each.choices for each in self._outside),
            kv_usage=live.pages.usage,
            preemptions=live.preemptions,
            prefixes=live.pages.prefix_counts(),
            speculation=live.drafter.counts,
            step_tokens=tuple(self._step_tokens),
            adapters=self._adapters.counts(),
            images=self._images.counts(),
        )
        self._step_tokens.clear()
        self._reported_usage, self._stats_due = stats.kv_usage, now + STATS_SECONDS
        return stats

    def _mark(self, plan: StepPlan) -> None:
        """Count a step that is about to be submitted, and note when its sequences left the queue."""
        self.steps += 1
        self.steps_ahead += bool(self._submitted)
        self._step_tokens.append(plan.batch.total_tokens)
        now = self._clock()
        for sequence in plan.sequences:
            if sequence.scheduled is None:
                sequence.scheduled = now

    def _wait(self) -> Message | None:
        """Sleep until a message arrives or the deadlines of stalled requests are due for a check."""
        outside = any(self._outside)
        try:
            return self._inbox.get(timeout=STALLED_SECONDS if self._scheduler.has_work or outside else None)
        except Empty:
            return None

    def _drain_inbox(self) -> list[TokenEvent]:
        events: list[TokenEvent] = []
        while not self._inbox.empty():
            events += self._take(self._inbox.get())
        return events

    def _take(self, message: Message) -> list[TokenEvent]:
        match message:
            case Request(guidance=None, adapters=(), images=()):
                return self._add(message)
            case Request():
                return self._begin(message)
            case Compiled(request, found):
                return self._add_compiled(request, found)
            case Abort(request_id, choice):
                events = [event for each in self._outside for event in each.abort(request_id, choice=choice)]
                return events + self._scheduler.abort(request_id, choice=choice)
            case LoadAdapter():
                self._adapters.load(message)
            case AdapterRead():
                events, reply = self._adapters.take(message)
                if reply is not None:
                    self._post(reply)
                return events + self._begin_adapted()
            case ImagePrepared():
                return self._images.take(message)
            case UnloadAdapter(key):
                self._adapters.unload(key)
            case Shutdown():
                self._open = False
            case Lost(error):
                raise error
        return []

    def _begin(self, request: Request) -> list[TokenEvent]:
        """Let a request wait for images, adapters and grammar; return its last events if it is refused."""
        if request.request_id in self._scheduler.live.requests or self._waits(request.request_id):
            error = RequestError(f"{request.request_id!r} is in use", param="request_id")
            return last_events(request, FinishReason.ERROR, error)
        if not request.images:
            return self._begin_seen(request)
        events = self._images.add(request)
        for each, left in self._images.ready():
            events += self._begin_seen(each, left)
        return events

    def _begin_seen(self, request: Request, left: frozenset[int] = frozenset()) -> list[TokenEvent]:
        """Let a request whose images have rows wait for the rest; `left` are the choices that have ended already."""
        if request.adapters:
            return self._adapters.add(request, left) + self._begin_adapted()
        return self._add(request, None, left) if request.guidance is None else self._compiling.add(request, left)

    def _waits(self, request_id: str) -> bool:
        return any(request_id in each for each in self._outside)

    def _begin_adapted(self) -> list[TokenEvent]:
        """Begin the requests whose adapters are in memory."""
        events = list[TokenEvent]()
        for request, left in self._adapters.ready():
            events += self._add(request, None, left) if request.guidance is None else self._compiling.add(request, left)
        return events

    def _add(
        self, request: Request, start_guide: StartGuide | None = None, left: frozenset[int] = frozenset()
    ) -> list[TokenEvent]:
        """Add a request to the scheduler; return error events for its choices if it is refused.

        Args:
            request: the request.
            start_guide: see `Live.add`.
            left: the choices that have ended already.
        """
        try:
            if self._waits(request.request_id):
                raise RequestError(f"{request.request_id!r} is in use", param="request_id")
            self._scheduler.add(request, start_guide)
        except FerrumError as error:
            return last_events(request, FinishReason.ERROR, error, left)
        for choice in left:
            self._scheduler.abort(request.request_id, choice=choice)
        return []

    def _add_compiled(self, request: Request, found: StartGuide | FerrumError) -> list[TokenEvent]:
        """Add a request whose grammar is compiled; ignore one that has ended meanwhile."""
        left = self._compiling.take(request)
        if left is None:
            return []
        if isinstance(found, FerrumError):
            return last_events(request, FinishReason.ERROR, found, left)
        return self._add(request, found, left)

    def _submit(self, plan: StepPlan) -> PendingStep | FerrumError:
        try:
            return self._executor.submit(plan.batch)
        except EngineDead:
            raise
        except Exception as error:  # noqa: BLE001 - a failed step must not end other requests
            return as_step_error(error)

    def _commit(self, plan: StepPlan, step: PendingStep | FerrumError) -> list[TokenEvent]:
        if isinstance(step, FerrumError):
            return self._scheduler.fail(plan, step)
        try:
            output = step.result()
        except EngineDead:
            raise
        except Exception as error:  # noqa: BLE001 - as in _submit
            return self._scheduler.fail(plan, as_step_error(error))
        self._committed += 1
        if self._recorded:
            self._computed_steps.append(computed_step(self._committed, plan, output))
        return self._scheduler.commit(plan, output)


def _is_live(scheduler: Scheduler, compiling: CompilingRequests, request_id: str) -> bool:
    return request_id in scheduler.live.requests or request_id in compiling


def _drop_frames(events: Iterable[TokenEvent]) -> bool:
    """Remove the tracebacks of errors, whose frames keep the model and its pool alive; return whether a choice ends."""
    ended = False
    for event in events:
        ended |= event.finish_reason is not None
        if (error := event.error) is not None:
            error.__traceback__ = error.__context__ = error.__cause__ = None
    return ended
