"""Replay of a recorded program by an interpreter, for any kernels whose arrays are numpy's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import Kernels, Network, NetworkOutput, Replay, StepTables, row_counts
from ferrum.kernels.op_spec import Extent, Op, Program, Value, as_tuple


class Interpreter(Replay):
    """A recorded program with buffers for the largest step.

    Args:
        program: a recorded program.
        limits: maximum rows of each extent.
    """

    def __init__(self, program: Program, limits: Mapping[Extent, int]) -> None:
        self.program = program
        self._limits = dict(limits)
        self._memory = [np.zeros(self._limits[extent] * size, np.uint8) for extent, size in program.buffers]

    def nbytes(self, extent: Extent) -> int:
        buffers = zip(self.program.buffers, self._memory, strict=True)
        return sum(memory.nbytes for (kind, _), memory in buffers if kind is extent)

    @np.errstate(all="ignore")  # the finite flags report a NaN
    def submit(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:
        counts = row_counts(tables, self._limits)
        kernels.begin(tables)
        for op in self.program.ops:
            self._run(op, kernels, counts)
        return NetworkOutput(*(self._view(value, counts) for value in self.program.output))

    def timed(self, kernels: Kernels, tables: StepTables) -> list[float]:
        counts = row_counts(tables, self._limits)
        kernels.begin(tables)
        seconds = []
        for op in self.program.ops:
            begun = time.perf_counter()
            self._run(op, kernels, counts)
            seconds.append(time.perf_counter() - begun)
        return seconds

    def _run(self, op: Op, kernels: Kernels, counts: Mapping[Extent, int]) -> None:
        arguments = op.spec.with_values(op.arguments, lambda value: self._view(value, counts))
        made = as_tuple(getattr(kernels, op.name)(*arguments))
        for value, array in zip(op.results, made, strict=True):
            view = self._view(value, counts)
            assert (array.shape, array.dtype) == (view.shape, view.dtype), f"{op.name} differs from its declaration"
            view[...] = array

    def _view(self, value: Value, counts: Mapping[Extent, int]) -> NDArray[Any]:
        rows = counts[value.extent]
        memory = self._memory[self.program.placement[value]][: rows * value.row_bytes]
        return memory.view(value.dtype).reshape(rows, value.columns)


@np.errstate(all="ignore")  # as in `Interpreter`
def run_eager(network: Network, kernels: Kernels, tables: StepTables, states: list[Any] | None = None) -> NetworkOutput:
    """Run a step without a recorded program. The results equal those of a replay bit for bit.

    Args:
        network, kernels, tables: of the step.
        states: collects the states of the layers, see `Network`.
    """
    kernels.begin(tables)
    return network(kernels) if states is None else network(kernels, states)
