"""`StepExecutor`: one step at a time, state machine and lease around a backend's `_run`.

This is what an engine needs of an executor. `ModelExecutor`, in the room `verbs`, adds the named verbs and reports.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from ferrum.contract.model_info import ExecutorTraits, ModelInfo
from ferrum.contract.sequences import SequenceStore
from ferrum.core.errors import EngineDead, ExecutorInUse, FerrumError, InvalidTransition
from ferrum.core.memory_plan import MemoryPlan, size
from ferrum.core.span_checks import check_kind
from ferrum.core.step import FinishedStep, PendingStep, Span, StepBatch, StepOutput

logger: Final = logging.getLogger("ferrum.executor")

_FORK_LOCK_SECONDS: Final = 0.5
"""Seconds to wait in a forked process for another thread that is testing whether the lock is free."""

_SHOWN: Final = 8
"""Tokens of a span in the message of a record; its fields have all."""

# States


class ExecutorState(StrEnum):
    """The states of an executor."""

    INITIALIZING = "Initializing"
    READY = "Ready"
    BUSY = "Busy"
    ERROR = "Error"
    SHUTDOWN = "Shutdown"


LEGAL: Final = {
    ExecutorState.INITIALIZING: {ExecutorState.READY, ExecutorState.ERROR, ExecutorState.SHUTDOWN},
    ExecutorState.READY: {ExecutorState.BUSY, ExecutorState.SHUTDOWN},
    ExecutorState.BUSY: {ExecutorState.READY, ExecutorState.ERROR},
    ExecutorState.ERROR: {ExecutorState.READY, ExecutorState.SHUTDOWN},
    ExecutorState.SHUTDOWN: set[ExecutorState](),
}
"""Legal transitions. Only `reset` and `shutdown` leave the error state; nothing leaves the last state."""


LAST_STEP: Final = 10.0
"""Seconds that interpreter exit waits for a running step."""


_held_in_steps: Final = WeakKeyDictionary[threading.RLock, int]()
"""Locks that steps hold, and the process of each."""


def stop_at_exit(lock: threading.RLock) -> None:
    """Let no step begin after interpreter exit has started; each step holds this lock.

    Python ends a daemon thread that returns from native code after that, which aborts the process.
    """
    _held_in_steps[lock] = os.getpid()


@atexit.register
def _stop_steps() -> None:
    for lock, process in _held_in_steps.copy().items():
        if process == os.getpid():  # in a forked process no thread may exist that could release it
            lock.acquire(timeout=LAST_STEP)


class Lifecycle:
    """The state of one executor."""

    def __init__(self) -> None:
        self.state = ExecutorState.INITIALIZING

    def move(self, target: ExecutorState) -> None:
        """Change the state.

        Raises:
            InvalidTransition: the transition is illegal.
        """
        if target not in LEGAL[self.state]:
            legal = ", ".join(sorted(LEGAL[self.state])) or "nowhere"
            raise InvalidTransition(f"cannot go from {self.state} to {target}, only to {legal}")
        self.state = target


# Steps and the lease


class StepExecutor(ABC):
    """An executor of a model's steps, one at a time, from any thread. The first step warms it up.

    It is a context manager: leaving it shuts the executor down. A forked process may use it too, unless another thread
    was running a step at the fork: then EngineDead is raised.

    Args:
        info: the model.
        traits: the executor's fixed properties.
        pages: its sequences.
    """

    def __init__(self, info: ModelInfo, traits: ExecutorTraits, pages: SequenceStore) -> None:
        self._info = info
        self.traits = traits
        self.pages = pages
        self._lock = threading.RLock()
        self._process = os.getpid()
        stop_at_exit(self._lock)
        self._lifecycle = Lifecycle()
        self._owner: str | None = None
        self._batch_size = 0
        self._last: float | None = None
        log_made(info, traits)

    @property
    def info(self) -> ModelInfo:
        """The model: the object that the executor was built with."""
        return self._info

    # Methods of a backend

    @abstractmethod
    def _run(self, batch: StepBatch) -> StepOutput:
        """Compute a step: one result or error per span; a failed span leaves its sequence as it was.

        Raises:
            FerrumError: the whole step is refused and nothing has changed. EngineDead and any other exception put the
                executor in the error state, which only `reset` and `shutdown` leave.
        """

    def _warm(self) -> None:  # noqa: B027 - optional
        """Prepare once, before the first step, what that step should not wait for."""

    def _close(self) -> None:  # noqa: B027 - optional
        """Free what the executor holds; nothing runs after this."""

    # Steps

    def submit(self, batch: StepBatch) -> PendingStep:
        """Run a step: one result or error per span. Engines and all named verbs use this method.

        Raises:
            InvalidTransition: the executor is shut down, or a step has broken it.
            RequestError: `batch` is no `StepBatch`.
            EngineDead: the device is lost, or this process was forked during a step of another thread.
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
        """Log a step that has ended."""
        if logger.isEnabledFor(logging.DEBUG):
            log_step(batch, output)

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
        except FerrumError as error:
            after = ExecutorState.ERROR if isinstance(error, EngineDead) else ExecutorState.READY
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

    # Memory

    @property
    def memory_plan(self) -> MemoryPlan:
        """The exact plan of its memory."""
        return self.traits.memory

    def kv_capacity(self) -> int | None:
        """Return the number of tokens that fit in the KV pool; None without a limit, 0 after the shutdown."""
        return 0 if self._ended else self.pages.capacity_tokens


# Log records: INFO when an executor is made, DEBUG for each step


def log_made(info: ModelInfo, traits: ExecutorTraits) -> None:
    """Log a new executor's model, kernels and memory at INFO."""
    plan = traits.memory
    memory = {"weights": plan.weights, "kv_pool": plan.kv_pool, "total": plan.total}
    fields = {"model": info.model_id, "family": info.family, "kernels": traits.kernels, "memory": memory}
    logger.info(
        "executor of %s (%s): %s kernels, %s of weights in %s, %s of KV pool in %s, %s in total",
        *(info.model_id, info.family, traits.kernels, size(plan.weights), info.dtype),
        *(size(plan.kv_pool), traits.kv_dtype, size(plan.total)),
        extra={"fields": fields},
    )


def log_step(batch: StepBatch, output: StepOutput) -> None:
    """Log the names, positions and tokens of a step at DEBUG; a failed span has its error."""
    spans = [_fields(*pair) for pair in zip(batch.spans, output.results, strict=True)]
    served = [span for span in spans if "error" not in span]
    tokens, milliseconds = sum(len(span["tokens"]) for span in served), 1e3 * output.seconds
    counts = len(served), len(spans), tokens, milliseconds
    listed = "; ".join(f"{span['cache_id']} position={span['position']} {_described(span)}" for span in spans)
    fields = {"spans": spans, "milliseconds": milliseconds}
    logger.debug("step: %d of %d spans, %d tokens, %.3f ms: %s", *counts, listed, extra={"fields": fields})


def _fields(span: Span, result: object) -> dict[str, Any]:
    fields = {"cache_id": span.cache_id, "position": span.start, "tokens": list(span.tokens)}
    return fields | ({"error": str(result)} if isinstance(result, FerrumError) else {})


def _described(span: dict[str, Any]) -> str:
    tokens: Sequence[int] = span["tokens"]
    more = ["..."] if len(tokens) > _SHOWN else []
    text = f"tokens=[{', '.join([*map(str, tokens[:_SHOWN]), *more])}]"
    return f"{text} failed: {span['error']}" if "error" in span else text
