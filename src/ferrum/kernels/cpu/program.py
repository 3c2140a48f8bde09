"""Replay of a recorded program: natively where the kernels can, else by the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.cpu.lowering import EXTENTS, Place
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import Kernels, NetworkOutput, StepTables
from ferrum.kernels.interpreter import Interpreter, row_counts
from ferrum.kernels.program_recorder import Extent, Op, Program, Value

_ALIGNMENT: Final = 64
"""Bytes of a cache line: buffers begin on one."""


class Replay(Protocol):
    """A program ready to run a step.

    Attributes:
        program: what it runs.
    """

    program: Program

    def __call__(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:
        """Run one step. The arrays returned are views that the next step overwrites."""
        ...

    def timed(self, kernels: Kernels, tables: StepTables) -> list[float]:
        """Run one step, and return the seconds of each of the program's operations."""
        ...

    def nbytes(self, extent: Extent) -> int:
        """Bytes of the buffers of that extent."""
        ...


def prepare_replay(program: Program, kernels: Kernels, limits: Mapping[Extent, int]) -> Replay:
    """The fastest replay of the program on these kernels.

    Args:
        program: what to run.
        kernels: what will run it; their pool is allocated.
        limits: most rows of each extent.
    """
    if isinstance(kernels, NativeKernels):
        return NativeProgram(program, kernels, limits)
    return Interpreter(program, limits)


class NativeProgram:
    """A program lowered to the native library's operations over one arena: a step is one call, without the GIL.

    Arguments as `prepare_replay`.
    """

    def __init__(self, program: Program, kernels: NativeKernels, limits: Mapping[Extent, int]) -> None:
        self.program = program  # its weights and vectors are only borrowed by the operations
        self._limits = dict(limits)
        self._kernels = kernels
        self._sizes = [self._buffer_bytes(extent, columns) for extent, columns in program.buffers]
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
        """Bytes of the buffers of that extent."""
        pairs = zip(self.program.buffers, self._sizes, strict=True)
        return sum(size for (kind, _), size in pairs if kind is extent)

    def __call__(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:
        """Run one step. The arrays returned are views that the next step overwrites."""
        counts = self._begin(kernels, tables)
        self._kernels.run(self._native)
        return NetworkOutput(*(matrix[: counts[extent]] for extent, matrix in self._output))

    def timed(self, kernels: Kernels, tables: StepTables) -> list[float]:
        """Run one step, and return the seconds of each of the program's operations, as the library's team sees them."""
        self._begin(kernels, tables)
        lowering = self._kernels.lowering
        lowering.runtime.use(self._kernels.threads)
        return list(lowering.library.time_all(lowering.runtime, self._operations))

    def _begin(self, kernels: Kernels, tables: StepTables) -> dict[Extent, int]:
        """Hand the step's tables over; how many rows each extent has."""
        assert kernels is self._kernels, "a program is lowered for the kernels that run it"
        counts = row_counts(tables, self._limits)
        kernels.begin(tables)
        return counts

    def _buffer_bytes(self, extent: Extent, columns: int) -> int:
        return self._limits[extent] * columns * (1 if extent is Extent.SPANS else 4)

    def _memory(self, value: Value) -> NDArray[Any]:
        return self._buffers[self.program.placement[value]].view(value.dtype)

    def _matrix(self, value: Value) -> NDArray[Any]:
        """The value's memory: as many rows as there can be."""
        rows = self._limits[value.extent]
        return self._memory(value)[: rows * value.columns].reshape(rows, value.columns)

    def _place(self, value: Value) -> Place:
        return Place(self._memory(value), EXTENTS[value.extent], value.columns, self._limits[value.extent])

    def _lower(self, op: Op) -> Any:
        arguments = tuple(self._place(a) if isinstance(a, Value) else a for a in op.arguments)
        return self._kernels.lowering.operation(op.name, arguments, [self._place(value) for value in op.results])
