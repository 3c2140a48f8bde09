"""What an executor is doing: its state, and a report of it."""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from weakref import WeakKeyDictionary

from ferrum.core.errors import InvalidTransition
from ferrum.core.json_record import JsonRecord


class ExecutorState(StrEnum):
    """The life of an executor."""

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
"""Where each state may lead. An error is left by `reset` or by the end; the end is left by nothing."""


LAST_STEP: Final = 10.0
"""Seconds that the interpreter's end waits for a step."""


_held_in_steps: Final = WeakKeyDictionary[threading.RLock, int]()
"""Locks, and the processes whose steps they are held in."""


def stop_at_exit(lock: threading.RLock) -> None:
    """Let no step begin any more, of which each holds this lock, once the interpreter ends.

    A daemon thread that came back from native code after that would be ended within it, which aborts the process.
    """
    _held_in_steps[lock] = os.getpid()


@atexit.register
def _stop_steps() -> None:
    for lock, process in _held_in_steps.copy().items():
        if process == os.getpid():  # in one that was forked from it there may be nobody to give the lock back
            lock.acquire(timeout=LAST_STEP)


class Lifecycle:
    """The state of one executor."""

    def __init__(self) -> None:
        self.state = ExecutorState.INITIALIZING

    def move(self, target: ExecutorState) -> None:
        """Go to another state.

        Raises:
            InvalidTransition: that is not where this one leads.
        """
        if target not in LEGAL[self.state]:
            legal = ", ".join(sorted(LEGAL[self.state])) or "nowhere"
            raise InvalidTransition(f"{self.state} leads to {legal}, not to {target}")
        self.state = target


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorMemoryUsage(JsonRecord):
    """Memory of an executor, in bytes.

    Attributes:
        allocated_bytes: all that is held: weights, KV pool, buffers, tables.
        used_bytes: the same with only those pages of the pool that are in use.
        peak_bytes: the most that has been used.
    """

    allocated_bytes: int
    used_bytes: int
    peak_bytes: int
    utilization_percent: float


def memory_usage(allocated: int, used: int, peak: int) -> ExecutorMemoryUsage:
    """The usage with its percentage: 100 x used / allocated."""
    return ExecutorMemoryUsage(
        allocated_bytes=allocated,
        used_bytes=used,
        peak_bytes=max(peak, used),
        utilization_percent=100.0 * used / allocated if allocated else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStatus(JsonRecord):
    """An executor at one moment.

    Attributes:
        is_ready: it takes steps (it is ready, or busy with one).
        current_batch_size: sequences of the step that is running, 0 between steps.
        prefill_operations, decode_operations: spans served since the start, as `ExecutorMetrics` counts them.
        avg_prefill_time_ms, avg_decode_time_ms: as in `ExecutorMetrics`.
        last_operation: seconds since the last step ended, None before the first.
        backend: the kernels in use.
        numerics_id: equal ids give equal bits.
        notes: what a user should know of how the executor was built.
    """

    state: ExecutorState
    is_ready: bool
    current_batch_size: int
    prefill_operations: int
    decode_operations: int
    avg_prefill_time_ms: float
    avg_decode_time_ms: float
    memory_usage: ExecutorMemoryUsage
    last_operation: float | None
    backend: str
    numerics_id: str
    notes: tuple[str, ...] = ()
