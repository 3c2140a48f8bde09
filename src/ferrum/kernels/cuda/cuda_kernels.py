"""The CUDA backend: kernels that compute the CPU's bits on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from ferrum.cache.page_table import PageCopy
from ferrum.core.devices import cuda_name
from ferrum.core.errors import Unsupported
from ferrum.kernels.adapters import AdapterSite, Change
from ferrum.kernels.cpu.library import available_threads, load, tiers
from ferrum.kernels.cpu.native_kernels import NativeRowSampler, native_page_sums, native_quantize
from ferrum.kernels.cuda.cuda_replay import CudaReplay, StepRows
from ferrum.kernels.cuda.device_memory import DeviceMemory, DeviceRows
from ferrum.kernels.cuda.device_tables import DeviceTables
from ferrum.kernels.cuda.device_weights import DeviceRope, DeviceVector, DeviceWeight, device_weight, planned_weight
from ferrum.kernels.cuda.driver import Driver
from ferrum.kernels.cuda.ground import Ground
from ferrum.kernels.cuda.launches import Images, Launcher, Operand
from ferrum.kernels.cuda.lowerings import LOWERINGS
from ferrum.kernels.cuda.row_sampler import CudaRowSampler
from ferrum.kernels.interface import (
    Collected,
    Kernels,
    NetworkOutput,
    PoolGroup,
    StatePool,
    StepTables,
    row_counts,
)
from ferrum.kernels.numerics import NUMERICS_ID
from ferrum.kernels.op_spec import Extent, OpSpec, Program, Value, as_tuple
from ferrum.kernels.operations import F32, Array, Bytes, Int32, Weight
from ferrum.kernels.reference.page_layout import PageLayout
from ferrum.kernels.services import PageSums, PanelQuantizer

_CHOICE: Final = "load the model with device=cpu"


@dataclass(frozen=True, slots=True)
class Platform:
    """A device, and where the code for it comes from.

    Attributes:
        planned: weights have sizes only, and no step runs.
    """

    driver: Driver
    images: Images
    planned: bool = False


class CudaKernels(Kernels):
    """`Kernels` of a device. Operations take weights from `weight` only, and rows of numpy or of the device.

    Args:
        platform: the device.
        ordinal: number of the device.
        graphs: replay recorded steps as one graph each; False launches their kernels one by one, with the same bits.

    Raises:
        Unsupported: the native library of the CPU is missing, which lays out weights.
    """

    name = "cuda"
    numerics_id = NUMERICS_ID
    captures = False
    takes_places = False
    defers = True

    def __init__(self, platform: Platform, ordinal: int = 0, *, graphs: bool = True) -> None:
        self._library = load()
        self._runtime = self._library.Runtime(tiers()[0], available_threads())
        self.driver, self._planned = platform.driver, platform.planned
        self.device = cuda_name(ordinal)
        self.graphs = graphs
        self.memory = DeviceMemory(self.driver)
        self.launcher = Launcher(self.driver, platform.images)
        self.ground = Ground(self.memory)
        self.captured: list[list[Array]] | None = None
        self.table_bytes = 0
        self._device_tables: DeviceTables | None = None
        self._groups: dict[str, int] = {}
        self._ropes: list[DeviceRope] = []
        self._numbers: dict[int, int] = {}
        self._tables: StepTables | None = None

    @property
    def tier(self) -> str:
        """The processor's compute capability, as "sm_90"."""
        return "sm_{}{}".format(*self.driver.capability)

    @property
    def scratch_bytes(self) -> int:
        return self.ground.scratch_bytes

    def device_memory(self) -> int:
        with self.driver.alone():
            return self.driver.memory()[0]

    # Parameters

    def weight(self, weight: Weight) -> DeviceWeight:
        made = planned_weight if self._planned else device_weight
        with self.driver.alone():
            return made(self, self.memory, self._library, self._runtime, weight)

    def vector(self, values: F32) -> DeviceVector:
        with self.driver.alone():
            self.table_bytes += values.size * 4
            return DeviceVector(self.memory.uploaded(np.ascontiguousarray(values, np.float32)), values.size)

    def rope_table(self, frequencies: tuple[float, ...], scaling: float, length: int) -> DeviceRope:
        with self.driver.alone():
            rope = DeviceRope(self.memory, self._library.fill_rope, frequencies, scaling, length)
            self._ropes.append(rope)
            self.table_bytes += rope.nbytes
            return rope

    # The pool

    def allocate(self, groups: tuple[PoolGroup, ...], states: StatePool | None = None) -> None:  # noqa: ARG002
        # Operations with states are refused when a program is prepared.
        with self.driver.alone():
            self._groups = {group.name: index for index, group in enumerate(groups)}
            self.ground.allocate(groups)
            self._device_tables = DeviceTables(self.memory, self.launcher, len(groups))

    def planned_page_bytes(self, group: PoolGroup) -> int:
        return PageLayout(group).nbytes

    def page_bytes(self, group: str) -> int:
        return self.ground.pools[self._groups[group]].page_bytes

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        with self.driver.alone():
            for copy in copies:
                pool = self.ground.pools[self._groups[copy.group]]
                self.memory.copy(pool.page(copy.target), pool.page(copy.source), pool.page_bytes)

    def read_page(self, group: str, page: int) -> Bytes:
        with self.driver.alone():
            data = np.empty(self.page_bytes(group), np.uint8)
            self.memory.download(self.ground.pools[self._groups[group]].page(page), data)
            return data

    def write_page(self, group: str, page: int, data: Bytes) -> None:
        with self.driver.alone():
            self.memory.upload(data, self.ground.pools[self._groups[group]].page(page))

    # Steps

    @property
    def step_memory(self) -> DeviceTables:
        """Return the memory of the step's tables."""
        if self._device_tables is None:
            self.allocate(())
        assert self._device_tables is not None
        return self._device_tables

    def begin(self, tables: StepTables) -> None:
        if tables.adapters:
            self.adapted(())
        if tables.places is not None or (tables.given is not None and tables.given.added is not None):
            raise Unsupported("places and added rows of images", f"{self.device} does not compute them: {_CHOICE}")
        with self.driver.alone():
            self._tables = tables
            if len(tables.positions):
                furthest = int(tables.positions.max())
                for rope in self._ropes:
                    rope.reach(furthest)
            self.step_memory.load(tables)
            self.ground.tables = self.step_memory.addresses

    def prepare(self, program: Program, limits: Mapping[Extent, int]) -> CudaReplay:
        with self.driver.alone():
            for op in program.ops:
                lowering_of(op.name)
            self.step_memory.reserve(limits[Extent.ROWS])
            return CudaReplay(program, self, limits)

    def collect(self, output: NetworkOutput) -> Collected:
        if isinstance(output.best, StepRows):
            self.driver.enter()
            return output.best.flight.collect()
        return self.host(output.best).ravel().tolist(), self.host(output.finite).ravel().tolist()

    def host(self, array: Array) -> NDArray[Any]:
        if isinstance(array, DeviceRows):
            with self.driver.alone():
                return array.host()
        return np.asarray(array)

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        """Run one operation and return its results as new arrays on the device."""
        with self.driver.alone():
            if not hasattr(self.ground, "tables"):
                self.ground.tables = self.step_memory.addresses
            rows = spec.with_values(arguments, self._on_device)
            shaped = spec.with_values(rows, lambda x: Value(cast(Extent, len(x)), x.shape[1]))
            results = spec.results(shaped)
            outs = [
                DeviceRows.empty(self.memory, (self._rows(value.extent), value.columns), value.dtype)
                for value in as_tuple(results)
            ]
            for out, overwritten in zip(outs, spec.overwritten(rows), strict=False):
                self.memory.copy(out.address, overwritten.address, out.nbytes)
            operands = spec.with_values(rows, self._operand)
            self.launcher.run(lowering_of(spec.name)(self.ground, *operands, *map(self._operand, outs)))
            return tuple(outs) if isinstance(results, tuple) else outs[0]

    def join(
        self,
        x: Any,
        starts: tuple[int, ...],  # noqa: ARG002 - one rank has all columns
        tiles: int = 1,  # noqa: ARG002
        rounded: bool = False,  # noqa: ARG002
    ) -> DeviceRows:
        with self.driver.alone():
            return self._on_device(x).copy()

    def rows(self, weight: DeviceWeight, ids: Int32) -> F32:
        """Return rows of a matrix, [len(ids), K] f32."""
        with self.driver.alone():
            count, columns = len(ids), weight.shape[1]
            out = DeviceRows.empty(self.memory, (count, columns))
            inputs = DeviceRows.of(self.memory, np.ascontiguousarray(ids, np.int32))
            none = DeviceRows.of(self.memory, np.full(count, -1, np.int32))
            before = getattr(self.ground, "tables", None) or self.step_memory.addresses
            try:
                self.ground.tables = before._replace(token_ids=inputs.address, given_of=none.address)
                self.launcher.run(lowering_of("embed")(self.ground, weight, 1.0, 1, 0, self._operand(out)))
            finally:
                self.ground.tables = before
            return cast(F32, out.host())

    def _on_device(self, x: Any) -> DeviceRows:
        return x if isinstance(x, DeviceRows) else DeviceRows.of(self.memory, np.ascontiguousarray(x, np.float32))

    def _operand(self, rows: DeviceRows) -> Operand:
        return Operand(rows.address, rows.shape[1], self._number(len(rows)), max(1, len(rows)))

    def _number(self, count: int) -> int:
        """Return the address of a row count that stays."""
        if count not in self._numbers:
            self._numbers[count] = self.memory.uploaded(np.array([count], np.int32))
        return self._numbers[count]

    def _rows(self, extent: Extent | int) -> int:
        if not isinstance(extent, Extent):
            return extent
        assert self._tables is not None, "begin() comes first"
        return row_counts(self._tables)[extent]

    # Sampling, and what the host does

    def sampler(self) -> CudaRowSampler:
        host = NativeRowSampler(self._library, self._runtime)
        return CudaRowSampler(self.memory, self.launcher, self.ground, host)

    def quantizer(self) -> PanelQuantizer:
        return partial(native_quantize, self._runtime)

    def page_sums(self) -> PageSums:
        return partial(native_page_sums, self._runtime)

    # What this backend lacks

    def adapted(self, changes: tuple[Change | None, ...], memory: Any = None) -> NoReturn:  # noqa: ARG002
        raise Unsupported("adapters", f"{self.device} does not compute them: {_CHOICE}")

    def install(self, site: AdapterSite, slot: int, entry: Any | None) -> None:  # noqa: ARG002
        if entry is not None:
            self.adapted(())

    @property
    def slot_bytes(self) -> int:
        return self._no_states()

    def copy_slot(self, source: int, target: int) -> NoReturn:  # noqa: ARG002
        self._no_states()

    def read_slot(self, slot: int) -> NoReturn:  # noqa: ARG002
        self._no_states()

    def write_slot(self, slot: int, data: Bytes) -> NoReturn:  # noqa: ARG002
        self._no_states()

    def _no_states(self) -> NoReturn:
        raise Unsupported("recurrent layers", f"{self.device} does not compute them: {_CHOICE}")


def lowering_of(name: str) -> Any:
    """Return the lowering of an operation. Raises Unsupported if there is none."""
    if name not in LOWERINGS:
        raise Unsupported(f"the operation {name}", f"device=cuda does not compute it: {_CHOICE}")
    return LOWERINGS[name]
