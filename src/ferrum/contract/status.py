"""The state machine of an executor, its status report, and the wait for running steps at interpreter exit."""

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


@dataclass(frozen=True, slots=True)
class ExecutorMemoryUsage(JsonRecord):
    """Memory of an executor, in bytes.

    Attributes:
        allocated_bytes: everything held: weights, KV pool, buffers, tables.
        used_bytes: the same without the free pages of the pool.
        peak_bytes: the maximum of used_bytes so far.
        utilization_percent: 100 x used_bytes / allocated_bytes.
    """

    allocated_bytes: int
    used_bytes: int
    peak_bytes: int
    utilization_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStatus(JsonRecord):
    """An executor's status at one moment.

    Attributes:
        is_ready: whether it takes steps (Ready or Busy).
        current_batch_size: sequences of the running step, 0 between steps.
        prefill_operations, decode_operations: spans served since the start, as `ExecutorMetrics` counts them.
        avg_prefill_time_ms, avg_decode_time_ms: as in `ExecutorMetrics`.
        last_operation: seconds since the last step ended, None before the first.
        backend: the kernels in use.
        numerics_id: equal ids give equal bits.
        notes: warnings about how the executor was built.
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
