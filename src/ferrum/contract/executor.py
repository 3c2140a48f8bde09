"""`ModelExecutor`: one step at a time, state machine, lease, counters and reports around a backend's `_run`.

The named verbs over the same `submit` are a facade, in `verbs.py`. Engines need none of them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, Self

from ferrum.contract.batch_probe import step_seconds
from ferrum.contract.capabilities import ExecutorCapabilities, ExecutorTraits, capabilities
from ferrum.contract.executor_log import log_made, log_step, logger
from ferrum.contract.executor_state import (
    ExecutorMetrics,
    ExecutorState,
    ExecutorStatus,
    Lifecycle,
    MemoryUse,
    StepRecorder,
    stop_at_exit,
)
from ferrum.contract.handles import NamedSequences
from ferrum.contract.io_types import ModelInfo
from ferrum.contract.pool_usage import cache_snapshot, memory_efficiency
from ferrum.contract.sequences import SequenceStore
from ferrum.contract.verbs import NamedVerbs, verb
from ferrum.core.errors import EngineDead, ExecutorInUse, FerrumError, InvalidTransition, Unsupported
from ferrum.core.memory_plan import MemoryPlan, MemoryRequirements
from ferrum.core.snapshots import CacheMetricsSnapshot, LoraMetricsSnapshot, SpeculationCounts
from ferrum.core.span_checks import check_kind
from ferrum.core.step import AdapterUse, FinishedStep, PendingStep, StepBatch, StepOutput, Want, fastest_batch_size
from ferrum.core.values import shown, whole

_FORK_LOCK_SECONDS: Final = 0.5
"""Seconds to wait in a forked process for another thread that is testing whether the lock is free."""


class ModelExecutor(ABC):
    """An executor of a model's steps, one at a time, from any thread. The first step warms it up.

    It is a context manager: leaving it shuts the executor down. A forked process may use it too, unless another thread
    was running a step at the fork: then EngineDead is raised.

    Args:
        info: the model.
        traits: the executor's fixed properties.
        pages: its sequences.
        cache_prefix: new sequences are named `<prefix>-0`, `<prefix>-1`, ...; no name is used twice.

    Attributes:
        sequences: the sequences by name and by handle.
    """

    def __init__(
        self, info: ModelInfo, traits: ExecutorTraits, pages: SequenceStore, *, cache_prefix: str = "llm-cache"
    ) -> None:
        self.traits = traits
        self.pages = pages
        self.sequences = NamedSequences(info, traits.kv_dtype, pages, cache_prefix)
        self._lock = threading.RLock()
        self._process = os.getpid()
        stop_at_exit(self._lock)
        self._lifecycle = Lifecycle()
        self._recorder = StepRecorder()
        self._speculation = SpeculationCounts()
        self._owner: str | None = None
        self._batch_size = 0
        self._last: float | None = None
        self._memory = MemoryUse(pages, traits.memory, info.kv_bytes_per_token(traits.kv_dtype))
        self._fastest: int | None = None
        log_made(info, traits)

    @property
    def info(self) -> ModelInfo:
        """The model: the object that the executor was built with."""
        return self.sequences.info

    prefill = verb(NamedVerbs.prefill)
    batch_prefill = verb(NamedVerbs.batch_prefill)
    forward = verb(NamedVerbs.forward)
    decode = verb(NamedVerbs.decode)
    batch_decode = verb(NamedVerbs.batch_decode)
    forward_verify = verb(NamedVerbs.forward_verify)
    speculative_decode = verb(NamedVerbs.speculative_decode)
    unified_decode = verb(NamedVerbs.unified_decode)
    handle = verb(NamedVerbs.handle)
    truncate_kv = verb(NamedVerbs.truncate_kv)
    truncate_kv_for_cache_id = verb(NamedVerbs.truncate_kv_for_cache_id)
    fork = verb(NamedVerbs.fork)
    set_lora_adapter = verb(NamedVerbs.set_lora_adapter)
    release_cache = verb(NamedVerbs.release_cache)

    @property
    def verbs(self) -> NamedVerbs:
        """The named verbs as one object."""
        parts = self.sequences, self.traits, self._exclusive, self._count_drafts, self._adapters_for
        return NamedVerbs(self.submit, *parts)  # not kept: a cycle would keep the model of a dropped executor alive

    # Methods of a backend

    @abstractmethod
    def _run(self, batch: StepBatch) -> StepOutput:
        """Compute a step: one result or error per span; a failed span leaves its sequence as it was.

        Raises:
            FerrumError: the whole step is refused and nothing has changed. Any other exception puts the executor in the
                error state, which only `reset` and `shutdown` leave.
        """

    def _warm(self) -> None:  # noqa: B027 - optional
        """Prepare once, before the first step, what that step should not wait for."""

    def _close(self) -> None:  # noqa: B027 - optional
        """Free what the executor holds; nothing runs after this."""

    def _adapters_for(self, cache_id: str, name: str | None) -> tuple[AdapterUse, ...]:
        """Return what `set_lora_adapter` chooses for a sequence. Raises Unsupported, RequestError."""
        raise Unsupported("adapters", f"{shown(name)} for {shown(cache_id)}: {type(self).__name__} takes none")

    # Steps

    def submit(self, batch: StepBatch) -> PendingStep:
        """Run a step: one result or error per span. Engines and all verbs use this method.

        Raises:
            InvalidTransition: the executor is shut down, or a step has broken it.
            RequestError: `batch` is no `StepBatch`.
            EngineDead: this process was forked during a step of another thread.
        """
        check_kind(batch, StepBatch, param="batch")
        if not batch.spans:
            return FinishedStep(StepOutput(()))
        with self._locked():
            if self._lifecycle.state is not ExecutorState.READY:
                self.warmup()
            return self._begin(batch)

    def _begin(self, batch: StepBatch) -> PendingStep:
        """Compute a step. A backend that runs ahead returns while it is being computed."""
        output = self._timed(batch)
        self._count(batch, output)
        return FinishedStep(output)

    def _count(self, batch: StepBatch, output: StepOutput) -> None:
        """Count a step that has ended."""
        served = []
        for span, result in zip(batch.spans, output.results, strict=True):
            if isinstance(result, FerrumError):
                continue
            served.append(span)
            if span.extras is not None and span.drafts and span.want is Want.TOKEN:
                self._count_drafts(span.drafts, result.accepted)
        self._recorder.record(served, output.seconds)
        if logger.isEnabledFor(logging.DEBUG):
            log_step(batch, output)
        self._memory.observe()

    def _count_drafts(self, drafted: int, accepted: int) -> None:
        self._speculation = self._speculation.plus(drafted, accepted)

    def _finish_steps(self) -> None:  # noqa: B027 - optional
        """Settle the steps in flight, if the backend runs ahead."""

    def _locked(self) -> threading.RLock:
        """Return the lock, if it can be taken: one that was held at a fork is never released in the new process."""
        if self._process != os.getpid():
            if self._lock.acquire(timeout=_FORK_LOCK_SECONDS):
                self._process = os.getpid()
                self._lock.release()
            elif self._process != os.getpid():
                raise EngineDead("this process was forked during a step: load another executor in it")
        return self._lock

    def _refuse_broken(self) -> None:
        """Raise InvalidTransition in the error state."""
        if self._lifecycle.state is ExecutorState.ERROR:
            raise InvalidTransition("a step failed or was interrupted: call `reset`, which drops all sequences")

    def _timed(self, batch: StepBatch) -> StepOutput:
        if self._lifecycle.state is ExecutorState.READY:
            self._lifecycle.state = ExecutorState.BUSY  # legal, and the usual case of every step
        else:
            self._refuse_broken()
            self._lifecycle.move(ExecutorState.BUSY)
        self._batch_size = len(batch.spans)
        start = time.perf_counter()
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
            self._lifecycle.state = after  # legal: it was busy
        return StepOutput(output.results, time.perf_counter() - start)

    # The lease

    def acquire_lease(self, owner: str) -> None:
        """Close the named verbs: from now on the sequences are the owner's, who uses `submit`.

        Raises:
            ExecutorInUse: another owner holds the lease.
            InvalidTransition: the executor is shut down.
        """
        with self._locked():
            self._refuse_ended()
            if self._owner is not None:
                raise ExecutorInUse(f"{self._owner!r} holds the lease of this executor")
            self._owner = owner

    def release_lease(self, owner: str) -> None:
        """Open the named verbs again; without this owner's lease nothing changes."""
        with self._locked():
            if self._owner == owner:
                self._owner = None

    @contextmanager
    def lease(self, owner: str) -> Iterator[Self]:
        """Hold the lease within a context. Raises as `acquire_lease`."""
        self.acquire_lease(owner)
        try:
            yield self
        finally:
            self.release_lease(owner)

    @property
    def in_use(self) -> bool:
        """Whether the lease is held or a step is running."""
        return self._owner is not None or self._lifecycle.state is ExecutorState.BUSY

    @contextmanager
    def _exclusive(self, *, ended: bool = False) -> Iterator[None]:
        """Hold the executor for one verb. Raises ExecutorInUse, and InvalidTransition unless it may have `ended`."""
        with self._locked():
            if not ended:
                self._refuse_ended()
            if self._owner is not None:
                raise ExecutorInUse(f"{self._owner!r} holds the lease of this executor: send requests to it")
            self._finish_steps()
            if self._lifecycle.state is ExecutorState.BUSY:  # with the lock held: a step was interrupted
                self._lifecycle.move(ExecutorState.ERROR)
            yield

    # States

    @property
    def _ended(self) -> bool:
        return self._lifecycle.state is ExecutorState.SHUTDOWN

    def _refuse_ended(self) -> None:
        """Raise InvalidTransition after the shutdown."""
        if self._ended:
            raise InvalidTransition("the executor is shut down: load another one")

    def warmup(self) -> None:
        """Prepare for the first step; later calls do nothing. Raises InvalidTransition after the shutdown."""
        with self._locked():
            self._refuse_ended()
            if self._lifecycle.state is not ExecutorState.INITIALIZING:
                return
            try:
                self._warm()
            except BaseException:
                self._lifecycle.move(ExecutorState.ERROR)
                raise
            self._lifecycle.move(ExecutorState.READY)

    def reset(self) -> None:
        """Drop every sequence; this also leaves the error state. Raises ExecutorInUse, InvalidTransition."""
        with self._exclusive():
            self.pages.reset()
            if self._lifecycle.state is ExecutorState.ERROR:
                self._lifecycle.move(ExecutorState.READY)

    def shutdown(self) -> None:
        """Wait for the running step, drop every sequence and free the memory; later calls do nothing.

        Afterwards verbs raise InvalidTransition, sizes are 0, and reports describe the executor as it was.

        Raises:
            ExecutorInUse: an engine holds the lease.
        """
        with self._exclusive(ended=True):
            if self._ended:
                return
            self._lifecycle.move(ExecutorState.SHUTDOWN)
            self.pages.reset()
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # Capabilities

    def capabilities(self) -> ExecutorCapabilities:
        """Return what this executor can do."""
        return capabilities(self.info, self.traits)

    @property
    def memory_plan(self) -> MemoryPlan:
        """The exact plan of its memory."""
        return self.traits.memory

    @property
    def memory_requirements(self) -> MemoryRequirements:
        """The formula that bounds the memory for work of a given size."""
        return self.capabilities().memory_requirements

    def kv_capacity(self) -> int | None:
        """Return the number of tokens that fit in the KV pool; None without a limit, 0 after the shutdown."""
        return 0 if self._ended else self.pages.capacity_tokens

    def supports_batch_size(self, size: int) -> bool:
        """Whether a step can hold this many new sequences now, a free page for each. Raises RequestError."""
        return 1 <= whole("size", size) <= self._max_sequences()

    def optimal_batch_size(self) -> int:
        """Return the new sequences per step beyond which this machine's throughput no longer grows; 0 without room.

        It is at most what `supports_batch_size` allows now. The first call with room measures a few short decode steps.
        The result is kept unless too few pages were free to try larger batches. Raises ExecutorInUse if a measurement
        is needed.
        """
        if self._fastest is not None or not self._max_sequences():
            return min(self._fastest or 0, self._max_sequences())
        with self._exclusive():
            self.warmup()
            room = self._max_sequences()
            fastest = fastest_batch_size(partial(step_seconds, self._timed, self.sequences), room)
            if room == self.traits.largest_batch or 2 * fastest <= room:
                self._fastest = fastest
            return fastest

    def _max_sequences(self) -> int:
        return 0 if self._ended else min([self.traits.max_batch_size, *self._free_pages()])

    def _free_pages(self) -> list[int]:
        """Return the free pages of each group, and how many sequences the free slots of states suffice for."""
        states = self.memory_plan.states
        slots = [] if states is None else [self.pages.free_slots // states.per_sequence]
        return [*slots, *(self.pages.free(part.name) for part in self.memory_plan.pool)]

    # Reports

    def status(self) -> ExecutorStatus:
        """Return the executor's status now, without waiting for a step."""
        state, last, metrics = self._lifecycle.state, self._last, self.metrics()
        return ExecutorStatus(
            state=state,
            is_ready=state in (ExecutorState.READY, ExecutorState.BUSY),
            current_batch_size=self._batch_size,
            prefill_operations=metrics.prefill_operations,
            decode_operations=metrics.decode_operations,
            avg_prefill_time_ms=metrics.avg_prefill_latency,
            avg_decode_time_ms=metrics.avg_decode_latency,
            memory_usage=self._memory.usage(freed=self._ended),
            last_operation=None if last is None else time.monotonic() - last,
            backend=self.traits.backend,
            numerics_id=self.traits.numerics_id,
            notes=self.traits.notes,
        )

    def metrics(self) -> ExecutorMetrics:
        """Return counts and speeds."""
        efficiency = memory_efficiency(self.pages, self.memory_plan)
        return self._recorder.metrics(max_batch_size=self.traits.largest_batch, memory_efficiency=efficiency)

    def cache_metrics_snapshot(self) -> CacheMetricsSnapshot:
        """Return the counters of the KV cache and of speculation."""
        counted = cache_snapshot(self.pages, self._speculation)
        return replace(counted, total_pages=0) if self._ended else counted

    def lora_metrics_snapshot(self) -> LoraMetricsSnapshot:
        """Return the counters of adapters, by their keys."""
        return LoraMetricsSnapshot()
