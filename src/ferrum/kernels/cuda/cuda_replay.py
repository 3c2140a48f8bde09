"""Replay of a recorded program on a device: launches for buckets of rows, each bucket one graph.

A graph runs every mixture of prefill and decode of its bucket: kernels read the step's row counts and tables on the
device. Results that the host needs are copied to pinned memory behind the step, so that the next one can be submitted
before they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ferrum.kernels.cuda.device_memory import DeviceMemory, DeviceRows
from ferrum.kernels.cuda.driver import Event
from ferrum.kernels.cuda.launches import Launch, Operand, PreparedLaunches
from ferrum.kernels.cuda.lowerings import LOWERINGS
from ferrum.kernels.cuda.product_launches import rounded_bytes, rounded_values
from ferrum.kernels.interface import Collected, Kernels, NetworkOutput, Replay, StepTables, row_counts
from ferrum.kernels.op_spec import Extent, Op, Program, Value

if TYPE_CHECKING:
    from ferrum.kernels.cuda.cuda_kernels import CudaKernels

_FLIGHTS: Final = 2
"""Steps that may be submitted before the first of them is collected."""


class Flight:
    """Results of a step on their way to the host.

    Args:
        memory: of the device.
        rows: most rows of logits, and spans.
    """

    def __init__(self, memory: DeviceMemory, rows: int) -> None:
        self._best = memory.pinned(rows, np.int32)
        self._finite = memory.pinned(rows, np.bool_)
        driver = memory.driver
        self._driver, self._done, self._counts = driver, Event.of(driver), (0, 0)

    def begin(self, best: DeviceRows, finite: DeviceRows) -> None:
        """Copy results behind the step that computes them."""
        for rows, to in ((best, self._best), (finite, self._finite)):
            if rows.nbytes:
                self._driver.call(
                    "cuMemcpyDtoHAsync_v2", to.ctypes.data, rows.address, rows.nbytes, self._driver.stream
                )
        self._counts = len(best), len(finite)
        self._done.record()

    def collect(self) -> Collected:
        """Wait for the step and return its results."""
        self._done.wait()
        return self._best[: self._counts[0]].tolist(), self._finite[: self._counts[1]].tolist()


class StepRows(DeviceRows):
    """The most likely tokens of a step, with its flight."""

    flight: Flight


class Bucket(NamedTuple):
    """A program for steps of up to a number of rows.

    Attributes:
        operations: the launches of each operation.
        whole: all of them.
        graph: handle of their graph, or 0.
        generation: of the addresses that they use.
    """

    operations: list[list[Launch]]
    whole: PreparedLaunches
    graph: int
    generation: int


class CudaReplay(Replay):
    """A program lowered to launches over buffers of fixed addresses. Arguments as `Kernels.prepare`, with the kernels.

    Raises:
        MemoryError: no memory for the buffers.
    """

    def __init__(self, program: Program, kernels: CudaKernels, limits: Mapping[Extent, int]) -> None:
        self.program = program
        self._kernels, self._limits = kernels, dict(limits)
        self._sizes = [limits[extent] * size for extent, size in program.buffers]
        self._buffers = [kernels.memory.take(max(1, size)) for size in self._sizes]
        self._buckets: dict[int, Bucket] = {}
        most = max(limits.values())
        self._flights = [Flight(kernels.memory, most) for _ in range(_FLIGHTS)]
        self._turn = 0

    def nbytes(self, extent: Extent) -> int:
        pairs = zip(self.program.buffers, self._sizes, strict=True)
        return sum(size for (kind, _), size in pairs if kind is extent)

    def submit(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:
        assert kernels is self._kernels, "a program runs on the kernels it was lowered for"
        counts = row_counts(tables, self._limits)
        logits, best, hidden, finite = (self._rows(value, counts[value.extent]) for value in self.program.output[:4])
        driver = self._kernels.driver
        with driver.alone():
            self._kernels.begin(tables)
            bucket = self._bucket(counts[Extent.ROWS])
            if bucket.graph:
                driver.call("cuGraphLaunch", bucket.graph, driver.stream)
            else:
                bucket.whole.run()
            return NetworkOutput(logits, self._begin_flight(best, finite), hidden, finite)

    def _begin_flight(self, best: DeviceRows, finite: DeviceRows) -> StepRows:
        self._turn = (self._turn + 1) % _FLIGHTS
        flight = self._flights[self._turn]
        flight.begin(best, finite)
        rows = StepRows(best.memory, best.address, best.shape, best.dtype)
        rows.flight = flight
        return rows

    def timed(self, kernels: Kernels, tables: StepTables) -> list[float]:
        assert kernels is self._kernels, "a program runs on the kernels it was lowered for"
        counts = row_counts(tables, self._limits)
        with self._kernels.driver.alone():
            self._kernels.begin(tables)
            operations = self._bucket(counts[Extent.ROWS]).operations
            prepared = [self._kernels.launcher.prepared(each) for each in operations]
            marks = [Event.of(self._kernels.driver, timed=True) for _ in range(len(prepared) + 1)]
            marks[0].record()
            for each, mark in zip(prepared, marks[1:], strict=True):
                each.run()
                mark.record()
            marks[-1].wait()
            return [begun.seconds_until(ended) for begun, ended in pairwise(marks)]

    def _bucket(self, rows: int) -> Bucket:
        """Return the program for that many rows: the next power of two, or the limit."""
        size = min(1 << max(0, rows - 1).bit_length(), self._limits[Extent.ROWS])
        generation = self._kernels.step_memory.generation
        found = self._buckets.get(size)
        if found is None or found.generation != generation:
            if found is not None and found.graph:
                self._kernels.driver.call("cuGraphExecDestroy", found.graph)
            found = self._buckets[size] = self._lowered(size, generation)
        return found

    def _lowered(self, size: int, generation: int) -> Bucket:
        rounded = rounded_values(self.program, lambda value: min(size, self._limits[value.extent]))
        operations = [self._launches(op, size, rounded) for op in self.program.ops]
        whole = self._kernels.launcher.prepared([launch for each in operations for launch in each])
        if not self._kernels.graphs:
            return Bucket(operations, whole, 0, generation)
        with self._kernels.driver.capture() as graph:
            whole.run()
        return Bucket(operations, whole, graph(), generation)

    def _launches(self, op: Op, size: int, rounded: Set[Value]) -> list[Launch]:
        def operand(value: Value) -> Operand:
            capacity = min(size, self._limits[value.extent])
            count = self._kernels.ground.tables.count(value.extent)
            return Operand(self._address(value), value.columns, count, capacity)

        arguments, ground = op.spec.with_values(op.arguments, operand), self._kernels.ground
        ground.rounded = {
            self._address(value): self._rounded(value, size) for value in {*op.operands(), *op.results} & rounded
        }
        launches: list[Launch] = LOWERINGS[op.name](ground, *arguments, *map(operand, op.results))
        ground.rounded = {}
        return launches

    def _rounded(self, value: Value, size: int) -> int:
        """Return the address of the rounded rows of a value."""
        nbytes = min(size, self._limits[value.extent]) * rounded_bytes(value.columns)
        return self._kernels.ground.scratch(f"rounded rows of buffer {self.program.placement[value]}", nbytes)

    def _address(self, value: Value) -> int:
        return self._buffers[self.program.placement[value]]

    def _rows(self, value: Value, count: int) -> DeviceRows:
        shape = count, value.columns
        return DeviceRows(self._kernels.memory, self._address(value), shape, value.dtype, owner=self)
