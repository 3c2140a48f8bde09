"""`ModelExecutor`: one door for steps, and everything that an executor says of itself.

A backend implements `_run`. All else is here: one step at a time, the states, the lease, the counters and reports; and
in `verbs` the named verbs, which are views of the same door.
"""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, Self, runtime_checkable

from ferrum.contract.capabilities import ExecutorCapabilities, ExecutorTraits, capabilities
from ferrum.contract.executor_metrics import ExecutorMetrics, StepRecorder
from ferrum.contract.io_types import (
    DecodeInput,
    DecodeOutput,
    ModelInfo,
    PrefillInput,
    PrefillOutput,
    SpeculativeDecodeOutput,
)
from ferrum.contract.sequences import SequenceStore
from ferrum.contract.status import (
    ExecutorMemoryUsage,
    ExecutorState,
    ExecutorStatus,
    Lifecycle,
    memory_usage,
    stop_at_exit,
)
from ferrum.contract.verbs import NamedVerbs
from ferrum.core.errors import (
    EngineDead,
    ExecutorInUse,
    FerrumError,
    InvalidTransition,
    KvExhausted,
    UnknownSequence,
)
from ferrum.core.memory_plan import MemoryPlan, MemoryRequirements
from ferrum.core.snapshots import CacheMetricsSnapshot, LoraMetricsSnapshot, SpeculationCounts
from ferrum.core.span_checks import check_kind
from ferrum.core.step import FinishedStep, PendingStep, Span, StepBatch, StepOutput, Want
from ferrum.core.tuning import fastest_batch_size
from ferrum.core.values import whole

_PROBES: Final = 3

_TAKEN_OVER: Final = 0.5
"""Seconds that another thread of a forked process may take to find out that the lock can be had there."""


class ModelExecutor(NamedVerbs):
    """Runs steps of a model, one at a time, from any thread. The first step warms it up.

    A context manager: leaving it shuts the executor down. A forked process may use it, too, unless a thread that it
    does not have was at work here when it was forked: then EngineDead is raised instead.

    Args:
        info, traits, pages, cache_prefix: see `NamedVerbs`.
    """

    def __init__(
        self, info: ModelInfo, traits: ExecutorTraits, pages: SequenceStore, *, cache_prefix: str = "llm-cache"
    ) -> None:
        super().__init__(info, traits, pages, cache_prefix=cache_prefix)
        self._lock = threading.RLock()
        self._process = os.getpid()
        stop_at_exit(self._lock)
        self._lifecycle = Lifecycle()
        self._recorder = StepRecorder()
        self._speculation = SpeculationCounts()
        self._owner: str | None = None
        self._batch_size = 0
        self._last: float | None = None
        self._peak = 0
        self._free: list[int] = []
        self._fastest: int | None = None

    # What a backend writes

    @abstractmethod
    def _run(self, batch: StepBatch) -> StepOutput:
        """Compute a step: one result or error per span; a failed span leaves its sequence as it was.

        Raises:
            FerrumError: the whole step is refused and nothing has happened. Any other exception puts the executor in
                the error state, which only `reset` and `shutdown` leave.
        """

    def _warm(self) -> None:
        """Do once, before the first step, what that step should not wait for."""

    def _close(self) -> None:
        """Let go of what the executor holds; nothing will run after this."""

    # The door

    def submit(self, batch: StepBatch) -> PendingStep:
        """Run a step: one result or error per span. This is the door of the lease's owner, and of all the verbs.

        Raises:
            InvalidTransition: the executor is shut down, or a step has broken it.
            RequestError: it is no step.
            EngineDead: this process was forked in the midst of another.
        """
        check_kind(batch, StepBatch, param="batch")
        if not batch.spans:
            return FinishedStep(StepOutput(()))
        with self._locked():
            if self._lifecycle.state is not ExecutorState.READY:
                self.warmup()
            output = self._timed(batch)
            served = []
            for span, result in zip(batch.spans, output.results, strict=True):
                if isinstance(result, FerrumError):
                    continue
                served.append(span)
                if span.drafts and span.want is Want.TOKEN:
                    self._speculation = self._speculation.plus(span.drafts, result.accepted)
            self._recorder.record(served, output.seconds)
            free = self._free_pages()
            if free != self._free:
                self._free, self._peak = free, max(self._peak, self._used_bytes())
            return FinishedStep(output)

    def _locked(self) -> threading.RLock:
        """The lock, where it can be had: one that was held when this process was forked is never released in it."""
        if self._process != os.getpid():
            if self._lock.acquire(timeout=_TAKEN_OVER):
                self._process = os.getpid()
                self._lock.release()
            elif self._process != os.getpid():
                raise EngineDead("this process was forked in the midst of a step, and needs an executor of its own")
        return self._lock

    def _timed(self, batch: StepBatch) -> StepOutput:
        if self._lifecycle.state is ExecutorState.ERROR:
            raise InvalidTransition("a step has failed or was interrupted: `reset` drops all sequences and goes on")
        self._lifecycle.move(ExecutorState.BUSY)
        self._batch_size = len(batch.spans)
        begun = time.perf_counter()
        after = ExecutorState.ERROR
        try:
            output = self._run(batch)
            after = ExecutorState.READY
        except FerrumError:
            after = ExecutorState.READY
            raise
        finally:
            self._last = time.monotonic()
            self._batch_size = 0
            self._lifecycle.move(after)
        return StepOutput(output.results, time.perf_counter() - begun)

    # The lease

    def acquire_lease(self, owner: str) -> None:
        """Close the named verbs to everybody: from now on sequences are the owner's, who works through `submit`.

        Raises:
            ExecutorInUse: another owner holds it.
        """
        with self._locked():
            if self._owner is not None:
                raise ExecutorInUse(f"{self._owner!r} holds the lease of this executor")
            self._owner = owner

    def release_lease(self, owner: str) -> None:
        """Open the verbs again; without that owner's lease there is nothing to do."""
        with self._locked():
            if self._owner == owner:
                self._owner = None

    @contextmanager
    def lease(self, owner: str) -> Iterator[Self]:
        """Hold the lease for a while. Raises as `acquire_lease`."""
        self.acquire_lease(owner)
        try:
            yield self
        finally:
            self.release_lease(owner)

    @property
    def in_use(self) -> bool:
        """Whether somebody holds the lease, or a step is running."""
        return self._owner is not None or self._lifecycle.state is ExecutorState.BUSY

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with self._locked():
            if self._owner is not None:
                raise ExecutorInUse(f"{self._owner!r} holds the lease: its sequences go through its queue")
            if self._lifecycle.state is ExecutorState.BUSY:  # not while we have the lock: it was interrupted
                self._lifecycle.move(ExecutorState.ERROR)
            yield

    # Life

    def warmup(self) -> None:
        """Get ready for the first step; later calls do nothing.

        Raises:
            InvalidTransition: the executor is shut down.
        """
        with self._locked():
            if self._lifecycle.state is ExecutorState.SHUTDOWN:
                raise InvalidTransition("the executor is shut down")
            if self._lifecycle.state is not ExecutorState.INITIALIZING:
                return
            try:
                self._warm()
            except BaseException:
                self._lifecycle.move(ExecutorState.ERROR)
                raise
            self._lifecycle.move(ExecutorState.READY)

    def reset(self) -> None:
        """Drop every sequence; this also leaves the error state. Raises ExecutorInUse."""
        with self._exclusive():
            self.pages.reset()
            if self._lifecycle.state is ExecutorState.ERROR:
                self._lifecycle.move(ExecutorState.READY)

    def shutdown(self) -> None:
        """Wait for the running step, drop every sequence and end; later calls do nothing. Raises ExecutorInUse."""
        with self._exclusive():
            if self._lifecycle.state is ExecutorState.SHUTDOWN:
                return
            self._lifecycle.move(ExecutorState.SHUTDOWN)
            self.pages.reset()
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # What it can do

    def capabilities(self) -> ExecutorCapabilities:
        """What this executor can do."""
        return capabilities(self.info, self.traits)

    @property
    def memory_plan(self) -> MemoryPlan:
        """What it holds, exactly."""
        return self.traits.memory

    @property
    def memory_requirements(self) -> MemoryRequirements:
        """The formula that bounds what work of a given size needs."""
        return self.capabilities().memory_requirements

    def kv_capacity(self) -> int:
        """Tokens that fit in the KV pool."""
        return self.pages.capacity_tokens

    def supports_batch_size(self, size: int) -> bool:
        """Whether a step can hold so many sequences, and the pool a page of each. Raises RequestError."""
        return 1 <= whole("size", size) <= self._most_sequences()

    def optimal_batch_size(self) -> int:
        """Sequences per step beyond which this machine brings no more tokens per second.

        Measured once, with a few short decode steps; again as long as nothing but the pages that are free just then
        bounds the answer. Raises ExecutorInUse if that is yet to be done.
        """
        if self._fastest is not None:
            return self._fastest
        with self._exclusive():
            self.warmup()
            room = self._most_sequences()
            fastest = fastest_batch_size(self._probe, room)
            most = min(self.traits.max_batch_size, *(part.num_pages for part in self.memory_plan.pool))
            if room == most or 2 * fastest <= room:
                self._fastest = fastest
            return fastest

    def _most_sequences(self) -> int:
        return min(self.traits.max_batch_size, *self._free_pages())

    def _free_pages(self) -> list[int]:
        return [self.pages.free(part.name) for part in self.memory_plan.pool]

    def _probe(self, size: int) -> float:
        """Seconds of one step of `size` sequences with one token each, the best of a few; infinite without room."""
        names = [self._new_id(f"{self._prefix}-probe", self._passing) for _ in range(size)]
        spans = tuple(Span(name, 0, (0,), Want.LOGITS) for name in names)
        best = float("inf")
        for _ in range(_PROBES):
            output = self._timed(StepBatch(spans))
            for name in names:
                self.pages.release(name)
            errors = [outcome for outcome in output.results if isinstance(outcome, FerrumError)]
            if any(isinstance(error, KvExhausted) for error in errors):
                break
            if errors:
                raise errors[0]
            best = min(best, output.seconds)
        return best

    # How it is doing

    def status(self) -> ExecutorStatus:
        """The executor at this moment; never waits for a step."""
        state, last, metrics = self._lifecycle.state, self._last, self.metrics()
        return ExecutorStatus(
            state=state,
            is_ready=state in (ExecutorState.READY, ExecutorState.BUSY),
            current_batch_size=self._batch_size,
            prefill_operations=metrics.prefill_operations,
            decode_operations=metrics.decode_operations,
            avg_prefill_time_ms=metrics.avg_prefill_latency,
            avg_decode_time_ms=metrics.avg_decode_latency,
            memory_usage=self._memory_usage(),
            last_operation=None if last is None else time.monotonic() - last,
            backend=self.traits.backend,
            numerics_id=self.traits.numerics_id,
            notes=self.traits.notes,
        )

    def metrics(self) -> ExecutorMetrics:
        """Counts and speeds."""
        held = sum((group.num_pages - self.pages.free(group.name)) * group.page_size for group in self.pages.groups[:1])
        efficiency = self._stored_tokens() / held if held else 0.0
        return self._recorder.metrics(max_batch_size=self.traits.max_batch_size, memory_efficiency=efficiency)

    def cache_metrics_snapshot(self) -> CacheMetricsSnapshot:
        """Counters of the KV cache and of speculation."""
        prefix = self.pages.prefix_counts()
        return CacheMetricsSnapshot(
            total_pages=sum(group.num_pages for group in self.pages.groups),
            used_pages=self.pages.used,
            shared_pages=self.pages.shared,
            sequences=len(self.pages.ids()),
            stored_tokens=self._stored_tokens(),
            cached_pages=prefix.cached_pages,
            evicted_pages=prefix.evicted_pages,
            prefix_query_tokens=prefix.query_tokens,
            prefix_hit_tokens=prefix.hit_tokens,
            restored_pages=prefix.restored_pages,
            external_query_tokens=prefix.external_query_tokens,
            external_hit_tokens=prefix.external_hit_tokens,
            speculation=self._speculation,
        )

    def lora_metrics_snapshot(self) -> LoraMetricsSnapshot:
        """Counters of the adapters. None can be loaded yet: it is empty."""
        return LoraMetricsSnapshot()

    def _stored_tokens(self) -> int:
        tokens = 0
        for cache_id in self.pages.ids():
            with suppress(UnknownSequence):  # it may be released while we count
                tokens += self.pages.length(cache_id)
        return tokens

    def _used_bytes(self) -> int:
        plan = self.memory_plan
        return plan.total - sum(self.pages.free(part.name) * part.page_bytes for part in plan.pool)

    def _memory_usage(self) -> ExecutorMemoryUsage:
        return memory_usage(self.memory_plan.total, self._used_bytes(), self._peak)


@runtime_checkable
class BatchModelExecutor(Protocol):
    """An executor that serves several sequences in one pass."""

    def batch_prefill(self, given: Sequence[PrefillInput]) -> list[PrefillOutput]: ...  # noqa: D102 - see NamedVerbs

    def batch_decode(self, given: Sequence[DecodeInput]) -> list[DecodeOutput]: ...  # noqa: D102

    def optimal_batch_size(self) -> int: ...  # noqa: D102 - see ModelExecutor

    def supports_batch_size(self, size: int) -> bool: ...  # noqa: D102


@runtime_checkable
class SpeculativeExecutor(Protocol):
    """An executor that verifies drafts."""

    def forward_verify(self, given: Sequence[DecodeInput]) -> list[DecodeOutput]: ...  # noqa: D102 - see NamedVerbs

    def speculative_decode(  # noqa: D102
        self, given: DecodeInput, draft_tokens: Any, acceptance_threshold: float | None = None
    ) -> SpeculativeDecodeOutput: ...
