"""Native replay of a recorded program: one call per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.cpu.lowering import EXTENTS, Operand
from ferrum.kernels.interface import Kernels, NetworkOutput, Replay, StepTables, row_counts
from ferrum.kernels.op_spec import Extent, Op, Program, Value

if TYPE_CHECKING:
    from ferrum.kernels.cpu.native_kernels import NativeKernels

_ALIGNMENT: Final = 64
"""Bytes of a cache line. Each buffer begins on one."""


class NativeProgram(Replay):
    """A program lowered to native operations over one arena. A step is one call that releases the GIL.

    Arguments as `Kernels.prepare`, with the kernels.
    """

    def __init__(self, program: Program, kernels: NativeKernels, limits: Mapping[Extent, int]) -> None:
        self.program = program  # keeps the weights and vectors alive that the operations borrow
        self._limits = dict(limits)
        self._kernels = kernels
        self._sizes = [limits[extent] * size for extent, size in program.buffers]
        starts = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in self._sizes)])
        arena = np.zeros(int(starts[-1]) + _ALIGNMENT, np.uint8)
        offset = -arena.ctypes.data % _ALIGNMENT
        self._buffers = [
            arena[offset + start : offset + start + size]
            for start, size in zip(map(int, starts), self._sizes, strict=False)
        ]
        self._operations = [self._lower(op) for op in program.ops]
        self._output = [(value.extent, self._matrix(value)) for value in program.output]
        self._native = kernels.lowering.library.Program(self._operations)

    def nbytes(self, extent: Extent) -> int:
        pairs = zip(self.program.buffers, self._sizes, strict=True)
        return sum(size for (kind, _), size in pairs if kind is extent)

    def submit(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:
        counts = row_counts(tables, self._limits)  # as `_begin`, which is one more call per step
        kernels.begin(tables)
        self._kernels.run(self._native, len(self._operations))
        rows = list[NDArray[Any]]()  # filled by a loop, since a comprehension is one more call per step
        for extent, matrix in self._output:
            rows.append(matrix[: counts[extent]])
        return NetworkOutput(*rows)

    def timed(self, kernels: Kernels, tables: StepTables) -> list[float]:
        self._begin(kernels, tables)
        lowering = self._kernels.lowering
        lowering.runtime.use(self._kernels.threads)
        return list(lowering.library.time_all(lowering.runtime, self._operations))

    def experts_read(self) -> int:
        return sum(operation.experts_read for operation in self._operations)

    def _begin(self, kernels: Kernels, tables: StepTables) -> dict[Extent, int]:
        """Pass the tables of the step to the kernels, and return the rows of each extent."""
        assert kernels is self._kernels, "a program runs on the kernels it was lowered for"
        counts = row_counts(tables, self._limits)
        kernels.begin(tables)
        return counts

    def _memory(self, value: Value) -> NDArray[Any]:
        memory = self._buffers[self.program.placement[value]]
        return memory[: self._limits[value.extent] * value.row_bytes].view(value.dtype)

    def _matrix(self, value: Value) -> NDArray[Any]:
        """Return the memory of a value with its maximum number of rows."""
        return self._memory(value).reshape(self._limits[value.extent], value.columns)

    def _operand(self, value: Value) -> Operand:
        return Operand(self._memory(value), EXTENTS[value.extent], value.columns, self._limits[value.extent])

    def _lower(self, op: Op) -> Any:
        arguments = op.spec.with_values(op.arguments, self._operand)
        return self._kernels.lowering.operation(op.name, arguments, [self._operand(value) for value in op.results])
