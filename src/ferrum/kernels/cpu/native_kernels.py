"""The native CPU backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final

import numpy as np

from ferrum.cache.page_table import PageCopy
from ferrum.core.errors import ConfigError, Unsupported
from ferrum.kernels.cpu.library import available_threads, chosen_tier, load
from ferrum.kernels.cpu.lowering import Lowering, operand
from ferrum.kernels.cpu.native_rope import GrowingRope
from ferrum.kernels.cpu.team_size import TeamSize
from ferrum.kernels.cpu.weights import PackedWeight, pack
from ferrum.kernels.interface import F32, Array, AttentionShape, Bytes, Kernels, PoolGroup, StepTables, Weight

_THREAD_BYTES: Final = 32 << 10
"""Stack bytes that a thread of the team uses."""


class NativeKernels(Kernels):
    """`Kernels` of the native library. Operations take weights from `weight` only.

    Args:
        isa: instruction tier: "auto" (the best of this machine), "avx512", "avx512_vnni", "avx2_vnni", "avx2" or
            "portable".
        threads: size of the team; None uses all available CPUs.
        head_dim: size of the largest attention head of the model.
        planning: pack weights without their numbers. No step can run.

    Raises:
        Unsupported: the library is missing, or `head_dim` exceeds its limit.
        ConfigError: this machine lacks the tier, or the system cannot start that number of threads.

    Attributes:
        table_bytes: see `Kernels`.
        captured: always empty, because this backend never stores whole rows of softmax weights.
        lowering: factory of the library's operations.
    """

    name = "native"
    captures = False

    def __init__(
        self, isa: str = "auto", threads: int | None = None, *, head_dim: int = 1, planning: bool = False
    ) -> None:
        library = load()
        if head_dim > library.MAX_HEAD_DIM:
            reason = f"head_dim is {head_dim}, the limit is {library.MAX_HEAD_DIM}"
            raise Unsupported("native CPU kernels", reason)
        tier = chosen_tier(isa)
        self.numerics_id = f"native-{tier}-{library.NUMERICS}"
        self._planning = planning
        self.captured: list[list[Array]] | None = None
        self.lowering = Lowering(library, _runtime(library, tier, threads or available_threads()))
        self.table_bytes = 0
        self._team_size = TeamSize(self.threads)
        self._ropes: list[GrowingRope] = []
        self._groups: dict[str, int] = {}
        self._tables: StepTables | None = None

    @property
    def threads(self) -> int:
        """Size of the team. A step may use fewer threads (`TeamSize`)."""
        return int(self.lowering.runtime.threads)

    @property
    def tier(self) -> str:
        """The instruction tier."""
        return str(self.lowering.runtime.tier)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of rows packed for products, and of the memory of each thread including its stack."""
        return int(self.lowering.runtime.scratch_bytes) + self.threads * _THREAD_BYTES

    def allocate(self, groups: tuple[PoolGroup, ...]) -> None:
        self._groups = {group.name: index for index, group in enumerate(groups)}
        self.lowering.runtime.allocate([_sizes(group) for group in groups])

    def planned_page_bytes(self, group: PoolGroup) -> int:
        # The library decides the padding, so ask a pool without pages.
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

    def begin(self, tables: StepTables) -> None:
        self._tables = tables  # the library copies them
        furthest = self.lowering.runtime.begin(
            tables.token_ids,
            tables.positions,
            tables.span_rows,
            list(tables.pages),
            tables.logit_rows,
            tables.hidden_rows,
            tables.embeddings,
        )
        for rope in self._ropes:
            rope.reach(furthest)

    def run(self, program: Any) -> None:
        """Run a program of the library on the current step."""
        runtime = self.lowering.runtime
        runtime.use(self._team_size.threads)
        begun = perf_counter()
        runtime.run(program)
        self._team_size.observe(perf_counter() - begun)

    @property
    def tables(self) -> StepTables:
        """Return the tables of the current step."""
        assert self._tables is not None, "begin() comes first"
        return self._tables

    def weight(self, weight: Weight) -> PackedWeight:
        return pack(self.lowering.library, self.lowering.runtime, weight, blank=self._planning)

    def vector(self, values: F32) -> F32:
        self.table_bytes += values.size * 4
        return np.ascontiguousarray(values, np.float32)

    def rope_table(self, frequencies: tuple[float, ...], scaling: float, length: int) -> tuple[F32, F32]:
        rope = GrowingRope(frequencies, scaling, length)
        self._ropes.append(rope)
        self.table_bytes += rope.cosines.nbytes + rope.sines.nbytes
        return rope.cosines, rope.sines

    def embed(self, table: Weight) -> F32:
        return self._run("embed", (table,), (len(self.tables.token_ids), table.shape[1]))[0]

    def norm(self, x: F32, weight: F32, eps: float) -> F32:
        return self._run("norm", (operand(x), weight, eps), x.shape)[0]

    def add_norm(self, residual: F32, delta: F32, weight: F32, eps: float) -> tuple[F32, F32]:
        arguments = (operand(residual), operand(delta), weight, eps)
        total, normed = self._run("add_norm", arguments, residual.shape, residual.shape)
        return total, normed

    def linear(self, x: F32, weights: tuple[Weight, ...], biases: tuple[F32 | None, ...]) -> tuple[F32, ...]:
        return self._run("linear", (operand(x), weights, biases), *((len(x), weight.shape[0]) for weight in weights))

    def gated_linear(self, x: F32, gate: Weight, up: Weight) -> F32:
        return self._run("gated_linear", (operand(x), gate, up), (len(x), gate.shape[0]))[0]

    def rope_store(
        self,
        q: F32,
        k: F32,
        v: F32,
        shape: AttentionShape,
        rope: tuple[F32, F32] | None,
        q_norm: F32 | None,
        k_norm: F32 | None,
        eps: float,
    ) -> F32:
        arguments = (operand(q), operand(k), operand(v), shape, rope, q_norm, k_norm, eps)
        return self._run("rope_store", arguments, q.shape)[0]

    def attention(self, q: F32, shape: AttentionShape) -> F32:
        return self._run("attention", (operand(q), shape), q.shape)[0]

    def gather(self, x: F32) -> F32:
        return self._run("gather", (operand(x),), (len(self.tables.logit_rows), x.shape[1]))[0]

    def head(self, x: F32, weight: Weight) -> F32:
        return self._run("head", (operand(x), weight), (len(x), weight.shape[0]))[0]

    def best(self, logits: F32) -> np.ndarray[Any, np.dtype[np.int32]]:
        out = np.zeros((len(logits), 1), np.int32)
        rows = operand(logits)  # keep a reference during the run: it may be a copy
        self.lowering.runtime.run([self.lowering.operation("best", (rows,), (operand(out),))])
        return out

    def gather_hidden(self, x: F32) -> F32:
        return self._run("gather_hidden", (operand(x),), (len(self.tables.hidden_rows), x.shape[1]))[0]

    def finite(self, x: F32) -> np.ndarray[Any, np.dtype[np.bool_]]:
        out = np.zeros((len(self.tables.span_rows) - 1, 1), np.bool_)
        rows = operand(x)  # keep a reference, as above
        self.lowering.runtime.run([self.lowering.operation("finite", (rows,), (operand(out),))])
        return out

    def _run(self, name: str, arguments: tuple[Any, ...], *shapes: tuple[int, ...]) -> tuple[F32, ...]:
        """Run one operation and return its results as new arrays of the given shapes."""
        outs = tuple(np.empty(shape, np.float32) for shape in shapes)
        operation = self.lowering.operation(name, arguments, tuple(map(operand, outs)))
        self.lowering.runtime.run([operation])
        return outs


def _sizes(group: PoolGroup) -> tuple[str, int, int, int, int, int, int]:
    """Return a layer group as the library takes it."""
    sizes = group.num_pages, group.page_size, group.num_layers, group.num_kv_heads, group.key_dim, group.value_dim
    return group.format, *sizes


def _runtime(library: Any, tier: str, threads: int) -> Any:
    """Start the library's thread team. Raises ConfigError if the system refuses the threads."""
    try:
        return library.Runtime(tier, threads)
    except RuntimeError as error:
        raise ConfigError(f"cannot start {threads} threads: {error} (lower --threads)", param="threads") from error
