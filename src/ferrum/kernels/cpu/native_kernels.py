"""The native CPU backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from ferrum.cache.page_table import PageCopy
from ferrum.core.errors import ConfigError, Unsupported
from ferrum.core.state_shape import StateShape
from ferrum.kernels.adapters import AdapterSite, Change
from ferrum.kernels.cpu.library import available_threads, chosen_tier, load
from ferrum.kernels.cpu.lowering import EXTENTS, Lowering, Operand, operand
from ferrum.kernels.cpu.team_size import StepTeam
from ferrum.kernels.cpu.weights import (
    AdapterMemory,
    NativeEntry,
    NativeWeight,
    native_entry,
    native_floats,
    native_weight,
)
from ferrum.kernels.exchange import RankExchange
from ferrum.kernels.interface import (
    Kernels,
    NetworkOutput,
    PoolGroup,
    Replay,
    StatePool,
    StepTables,
    output_of,
    row_counts,
    with_carried,
)
from ferrum.kernels.numerics import NUMERICS_ID
from ferrum.kernels.op_spec import Extent, Op, OpSpec, Program, Value, as_tuple
from ferrum.kernels.operations import F32, Array, Bytes, Weight
from ferrum.kernels.services import Draw, PageSums, PanelQuantizer, Question, RowSampler, Standing

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
        self._shared: Bytes | None = None

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

    def share(self, memory: Bytes, rank: int, ranks: int) -> RankExchange:
        self._shared = memory  # the library borrows it
        exchange: RankExchange = self.lowering.library.exchange(memory, rank, ranks)
        self.lowering = replace(self.lowering, exchange=exchange)
        return exchange

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
            *(tables.given or (None, None, None)),
            tables.adapters,
            tables.states,
            tables.places,
            tables.last_seen,
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
        results = spec.results(shaped)
        outs = tuple(np.zeros((self._rows(value.extent), value.columns), value.dtype) for value in as_tuple(results))
        for out, overwritten in zip(outs, spec.overwritten(arguments), strict=False):
            out[...] = overwritten
        operands = spec.with_values(arguments, operand)  # may be copies, so keep them during the run
        self.lowering.runtime.run([self.lowering.operation(spec.name, operands, tuple(map(operand, outs)))])
        return outs if isinstance(results, tuple) else outs[0]

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


# ---- Native replay of a recorded program: one call per step ----

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
        self._parts: dict[range, Any] = {}

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
        return NetworkOutput(rows[0], rows[1], rows[2], rows[3])

    def run_part(self, kernels: Kernels, tables: StepTables, part: range) -> NetworkOutput:
        counts = self._begin(kernels, tables) if part.start == 0 else row_counts(tables)
        if part not in self._parts:
            self._parts[part] = self._kernels.lowering.library.Program(self._operations[part.start : part.stop])
        self._kernels.run(self._parts[part], len(part))
        return output_of([matrix[: counts[extent]] for extent, matrix in self._output])

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


# ---- Sampling, quantisation and checksums on the thread team of the native library ----


class NativeRowSampler(RowSampler):
    """`RowSampler` of the library. Its thread team samples between steps, the rows in parallel.

    Args:
        library: the compiled module.
        runtime: a `Runtime` of the library.
    """

    def __init__(self, library: Any, runtime: Any) -> None:
        self._team = library.SamplerTeam(runtime)

    def held_bytes(self, vocab_size: int) -> int:
        return int(self._team.held_bytes(vocab_size))

    def draw(self, rows: Sequence[Draw]) -> Sequence[int]:
        found: Sequence[int] = self._team.draw([(np.ascontiguousarray(each.logits), *each[1:]) for each in rows])
        return found

    def standings(self, questions: Sequence[Question]) -> list[Standing]:
        rows = [(np.ascontiguousarray(each.logits), each.token, each.most) for each in questions]
        return [
            _standing(row, token, *found)
            for (row, token, _), found in zip(rows, self._team.describe(rows), strict=True)
        ]


def _standing(
    row: NDArray[np.float32], token: int, peak: float, normaliser: float, rank: int, best: Sequence[int]
) -> Standing:
    first = np.array(best, np.int64)
    return Standing(np.float32(peak), np.float32(normaliser), rank, row[token], first, row[first])


def native_quantize(
    runtime: Any,
    values: NDArray[Any],
    format: str,
    importance: NDArray[np.float32] | None = None,
    *,
    thorough: bool = False,
) -> tuple[NDArray[np.uint8], int]:
    """Quantise a matrix: the `PanelQuantizer` of a `Runtime` of the library."""
    weights = np.empty(0, np.float32) if importance is None else importance
    panels, fault = runtime.quantize(*native_floats(values), format, weights, thorough)
    return panels, fault


def native_page_sums(runtime: Any, data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the sums of `kernels.reference.page_sums`, computed by the thread team of a `Runtime`."""
    sums = np.empty(-(-len(data) // 4096), np.uint64)
    runtime.sum_pages(data, sums)
    return sums
