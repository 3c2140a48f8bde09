"""A backend that computes nothing until it is asked, as a device with a queue: the toy backend, one step late.

A step is computed in its turn once its results, or those of a later step, are collected. Two steps have memory for
their best tokens and flags: those of a step are lost when the second step after it runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import pytest

from ferrum.kernels.interface import Collected, Kernels, NetworkOutput, StepTables
from ferrum.kernels.op_spec import Extent, Program
from ferrum.runtime.backend import ChosenKernels
from toy_backend import Life, Rows, ToyKernels, ToyReplay, with_tokens


class LateStep:
    """A submitted step.

    Attributes:
        output: None until it is computed.
        error: raised by it.
    """

    def __init__(self, tables: StepTables) -> None:
        self.tables = tables
        self.life = Life()
        self.copied: np.ndarray | None = None
        self.output: NetworkOutput | None = None
        self.error: Exception | None = None


class LateRows(Rows):
    """Rows of a step that may not be computed yet."""

    def __init__(self, kernels: LateKernels, step: LateStep, field: str) -> None:
        self._kernels, self._step, self._field = kernels, step, field

    @property
    def rows(self) -> Rows:
        self._kernels.run_through(self._step)
        rows: Rows = getattr(self._step.output, self._field)
        return rows

    @property
    def numbers(self) -> np.ndarray:
        return self.rows.numbers

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: int | slice) -> Rows:
        return self.rows[which]

    def copy(self) -> Rows:
        return Copied(self._kernels, self._step, self._field) if self._field == "best" else self.rows.copy()


class Copied(LateRows):
    """The best tokens of a step in separate memory, which stays."""

    @property
    def numbers(self) -> np.ndarray:
        self._kernels.run_through(self._step)
        assert self._step.copied is not None
        return self._step.copied


class LateKernels(ToyKernels):
    """The toy kernels with a queue.

    Attributes:
        ahead: number of steps that were submitted before the one before them was collected.
    """

    defers = True

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0
        self.replay: ToyReplay | None = None
        self._queue: deque[LateStep] = deque()
        self._last: deque[LateStep] = deque(maxlen=2)
        self._awaited: LateStep | None = None

    def prepare(self, program: Program, limits: Mapping[Extent, int]) -> LateReplay:
        self.replay = ToyReplay(program)
        return LateReplay(self.replay)

    def submit(self, tables: StepTables) -> NetworkOutput:
        step = LateStep(with_tokens(tables, lambda tokens: tokens))  # those of now; the host may set others later
        self.ahead += self._awaited is not None
        self._awaited = step
        self._queue.append(step)
        return NetworkOutput(*(LateRows(self, step, field) for field in NetworkOutput._fields[:4]))

    def run_through(self, step: LateStep) -> None:
        """Compute the queued steps up to this one, in order."""
        while step.output is None and step.error is None:
            self._run(self._queue.popleft())
        if step.error is not None:
            raise copy(step.error)

    def _run(self, step: LateStep) -> None:
        assert self.replay is not None
        if len(self._last) == 2:
            self._last[0].life.over = True
        self._last.append(step)
        try:
            made = self.replay.submit(self, step.tables)
        except Exception as error:  # noqa: BLE001 - raised when the step is collected
            step.error = error.with_traceback(None)  # its frames would keep the queue of steps alive
            return
        best, finite = made.best.numbers, made.finite.numbers
        step.copied = best.copy()
        kept = Rows(best.copy(), step.life), Rows(finite.copy(), step.life)
        step.output = made._replace(best=kept[0], finite=kept[1])

    def collect(self, output: NetworkOutput) -> Collected:
        if output.best._step is self._awaited:
            self._awaited = None
        return Kernels.collect(self, output)  # type: ignore[arg-type]  # the reads run the step

    def __getattr__(self, name: str) -> Any:
        if name in ("copy_pages", "read_page", "write_page", "copy_slot", "read_slot", "write_slot"):
            while self._queue:
                self._run(self._queue.popleft())
        return super().__getattr__(name)


class LateReplay:
    """A replay that queues its steps."""

    def __init__(self, inner: ToyReplay) -> None:
        self._inner = inner
        self.program, self.timed, self.nbytes = inner.program, inner.timed, inner.nbytes

    def submit(self, kernels: LateKernels, tables: StepTables) -> NetworkOutput:
        return kernels.submit(tables)


@contextmanager
def late_backend() -> Iterator[None]:
    """Load models on the late backend in this context, whichever kernels are asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ferrum.runtime.load.choose_kernels", lambda *_, **__: ChosenKernels(LateKernels()))
        yield
