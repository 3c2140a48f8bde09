"""The native CPU backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

import numpy as np

from ferrum.cache.page_table import PageCopy
from ferrum.core.errors import ConfigError, Unsupported
from ferrum.core.state_shape import StateShape
from ferrum.kernels.adapters import AdapterSite, Change
from ferrum.kernels.cpu.adapter_sites import AdapterMemory, NativeEntry, native_entry
from ferrum.kernels.cpu.library import available_threads, chosen_tier, load
from ferrum.kernels.cpu.lowering import Lowering, operand
from ferrum.kernels.cpu.native_services import NativeRowSampler, native_page_sums, native_quantize
from ferrum.kernels.cpu.program import NativeProgram
from ferrum.kernels.cpu.team_size import StepTeam
from ferrum.kernels.cpu.weights import NativeWeight, native_weight
from ferrum.kernels.interface import Kernels, PoolGroup, StatePool, StepTables, row_counts, with_carried
from ferrum.kernels.numerics import NUMERICS_ID
from ferrum.kernels.op_spec import Extent, OpSpec, Program, Value, as_tuple
from ferrum.kernels.operations import F32, Array, Bytes, Weight
from ferrum.kernels.services import PageSums, PanelQuantizer

CHUNK: Final = 1024
"""Positions filled at once. One chunk delays a step by one or two milliseconds."""


class GrowingRope:
    """A rope table with a fixed address, filled in chunks by the library.

    Args:
        library: the compiled module.
        frequencies, scaling, length: see `Kernels.rope_table`.

    Attributes:
        cosines, sines: [length, pairs].
        filled: number of leading rows that are defined.
    """

    def __init__(self, library: Any, frequencies: tuple[float, ...], scaling: float, length: int) -> None:
        self.cosines: F32 = np.empty((length, len(frequencies)), np.float32)
        self.sines: F32 = np.empty_like(self.cosines)
        self._library, self._scaling = library, scaling
        self._frequencies = np.asarray(frequencies, np.float32)
        self.filled = 0

    def reach(self, position: int) -> None:
        """Fill the table up to a position."""
        if position < self.filled:
            return
        rows = slice(self.filled, min(len(self.cosines), (position // CHUNK + 1) * CHUNK))
        tables = self.cosines[rows], self.sines[rows]
        self._library.fill_rope(self._frequencies, self._scaling, rows.start, *tables)
        self.filled = rows.stop


_THREAD_BYTES: Final = 32 << 10
"""Stack bytes that a thread of the team uses."""


class NativeKernels(Kernels):
    """`Kernels` of the native library. Operations take weights from `weight` only.

    Args:
        isa: instruction tier: "auto" (the best of this machine), "avx512", "avx512_vnni", "avx2_vnni", "avx2",
            "neon_dot", "neon" or "portable".
        threads: size of the team; None uses all available CPUs.
        head_dim: size of the largest attention head of the model.
        planning: make weights without their numbers. No step can run.

    Raises:
        Unsupported: the library is missing, or `head_dim` exceeds its limit.
        ConfigError: this machine lacks the tier, or the system cannot start that number of threads.

    Attributes:
        table_bytes: see `Kernels`.
        captured: always empty, because this backend never stores whole rows of softmax weights.
        lowering: factory of the library's operations.
    """

    name = "native"
    numerics_id = NUMERICS_ID
    captures = False
    host = staticmethod(np.asarray)  # type: ignore[assignment]  # a method would run Python code at every step

    def __init__(
        self, isa: str = "auto", threads: int | None = None, *, head_dim: int = 1, planning: bool = False
    ) -> None:
        library = load()
        if head_dim > library.MAX_HEAD_DIM:
            reason = f"head_dim is {head_dim}, the limit is {library.MAX_HEAD_DIM}"
            raise Unsupported("native CPU kernels", reason)
        tier = chosen_tier(isa)
        self._planning = planning
        self.captured: list[list[Array]] | None = None
        self.lowering = Lowering(library, _runtime(library, tier, threads or available_threads()))
        self.table_bytes = 0
        self._team = StepTeam(self.threads)
        self._ropes: list[GrowingRope] = []
        self._groups: dict[str, int] = {}
        self._tables: StepTables | None = None

    @property
    def threads(self) -> int:
        """Size of the team. A step may use fewer threads (`StepTeam`)."""
        return int(self.lowering.runtime.threads)

    @property
    def tier(self) -> str:
        """The instruction tier."""
        return str(self.lowering.runtime.tier)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of rows packed for products, and of the memory of each thread including its stack."""
        return int(self.lowering.runtime.scratch_bytes) + self.threads * _THREAD_BYTES

    def allocate(self, groups: tuple[PoolGroup, ...], states: StatePool | None = None) -> None:
        self._groups = {group.name: index for index, group in enumerate(groups)}
        slots = None if states is None else (states.num_slots, list(map(_numbers, states.shapes)), states.kept_rows)
        self.lowering.runtime.allocate([_sizes(group) for group in groups], slots)

    def planned_page_bytes(self, group: PoolGroup) -> int:
        # A pool without pages answers without the modules of the reference, which would take longer to import.
        runtime = self.lowering.library.Runtime(self.tier, 1)
        runtime.allocate([_sizes(replace(group, num_pages=0))])
        return int(runtime.page_bytes(0))

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        for copy in copies:
            self.lowering.runtime.copy_page(self._groups[copy.group], copy.source, copy.target)

    def page_bytes(self, group: str) -> int:
        return int(self.lowering.runtime.page_bytes(self._groups[group]))

    def read_page(self, group: str, page: int) -> Bytes:
        data = np.empty(self.page_bytes(group), np.uint8)
        self.lowering.runtime.read_page(self._groups[group], page, data)
        return data

    def write_page(self, group: str, page: int, data: Bytes) -> None:
        self.lowering.runtime.write_page(self._groups[group], page, data)

    @property
    def slot_bytes(self) -> int:
        return int(self.lowering.runtime.slot_bytes)

    def copy_slot(self, source: int, target: int) -> None:
        self.lowering.runtime.copy_slot(source, target)

    def read_slot(self, slot: int) -> Bytes:
        data = np.empty(self.slot_bytes, np.uint8)
        self.lowering.runtime.read_slot(slot, data)
        return data

    def write_slot(self, slot: int, data: Bytes) -> None:
        self.lowering.runtime.write_slot(slot, data)

    def begin(self, tables: StepTables) -> None:
        self._tables = tables  # the library copies them
        furthest = self.lowering.runtime.begin(
            with_carried(tables) if tables.carried else tables.token_ids,
            tables.positions,
            tables.span_rows,
            list(tables.pages),
            tables.logit_rows,
            tables.hidden_rows,
            *(tables.given or (None, None)),
            tables.adapters,
            tables.states,
        )
        for rope in self._ropes:
            if furthest >= rope.filled:
                rope.reach(furthest)

    def adapter_memory(self, nbytes: int) -> AdapterMemory:
        return AdapterMemory(nbytes)

    def adapted(self, changes: tuple[Change | None, ...], memory: AdapterMemory | None = None) -> NativeEntry:
        return native_entry(changes, memory or AdapterMemory(0))

    def install(self, site: AdapterSite, slot: int, entry: NativeEntry | None) -> None:
        self.lowering.sites.set(site, slot, entry, self.lowering.library)

    def prepare(self, program: Program, limits: Mapping[Extent, int]) -> NativeProgram:
        return NativeProgram(program, self, limits)

    def sampler(self) -> NativeRowSampler:
        return NativeRowSampler(self.lowering.library, self.lowering.runtime)

    def quantizer(self) -> PanelQuantizer:
        return partial(native_quantize, self.lowering.runtime)

    def page_sums(self) -> PageSums:
        return partial(native_page_sums, self.lowering.runtime)

    def run(self, program: Any, operations: int) -> None:
        """Run a program of the library, which has that many operations, on the current step."""
        runtime, rows = self.lowering.runtime, len(self.tables.token_ids)
        runtime.use(self._team.begin(rows, operations))
        runtime.run(program)
        self._team.end()

    @property
    def tables(self) -> StepTables:
        """Return the tables of the current step."""
        assert self._tables is not None, "begin() comes first"
        return self._tables

    def weight(self, weight: Weight) -> NativeWeight:
        return native_weight(self.lowering.library, self.lowering.runtime, weight, blank=self._planning)

    def vector(self, values: F32) -> F32:
        self.table_bytes += values.size * 4
        return np.ascontiguousarray(values, np.float32)

    def rope_table(self, frequencies: tuple[float, ...], scaling: float, length: int) -> tuple[F32, F32]:
        rope = GrowingRope(self.lowering.library, frequencies, scaling, length)
        self._ropes.append(rope)
        self.table_bytes += rope.cosines.nbytes + rope.sines.nbytes
        return rope.cosines, rope.sines

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        """Run one operation and return its results as new arrays."""
        # Values of an eager call have a number of rows in place of an extent.
        shaped = spec.with_values(arguments, lambda x: Value(cast(Extent, len(x)), x.shape[1]))
        made = spec.results(shaped)
        outs = tuple(np.zeros((self._rows(value.extent), value.columns), value.dtype) for value in as_tuple(made))
        for out, overwritten in zip(outs, spec.overwritten(arguments), strict=False):
            out[...] = overwritten
        operands = spec.with_values(arguments, operand)  # may be copies, so keep them during the run
        self.lowering.runtime.run([self.lowering.operation(spec.name, operands, tuple(map(operand, outs)))])
        return outs if isinstance(made, tuple) else outs[0]

    def _rows(self, extent: Extent | int) -> int:
        return row_counts(self.tables)[extent] if isinstance(extent, Extent) else extent


def _sizes(group: PoolGroup) -> tuple[str, int, int, int, int, int, int]:
    """Return a layer group as the library takes it."""
    sizes = group.num_pages, group.page_size, group.num_layers, group.num_kv_heads, group.key_dim, group.value_dim
    return group.format, *sizes


def _numbers(shape: StateShape) -> tuple[int, int, int]:
    """Return the shape of a state as the library takes it."""
    return shape.numbers, shape.row_numbers, shape.num_layers


def _runtime(library: Any, tier: str, threads: int) -> Any:
    """Start the library's thread team. Raises ConfigError if the system refuses the threads."""
    try:
        return library.Runtime(tier, threads)
    except RuntimeError as error:
        raise ConfigError(f"cannot start {threads} threads: {error} (lower --threads)", param="threads") from error
