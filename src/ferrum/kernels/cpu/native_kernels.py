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
from ferrum.kernels.cpu.lowering import Lowering, placed
from ferrum.kernels.cpu.native_rope import GrowingRope
from ferrum.kernels.cpu.team_size import TeamSize
from ferrum.kernels.cpu.weights import PackedWeight, pack
from ferrum.kernels.interface import F32, Array, AttentionShape, Bytes, PoolGroup, StepTables, Weight

_THREAD_BYTES: Final = 32 << 10
"""What a thread of the team takes besides: its stack, as far as it is used."""


class NativeKernels:
    """`Kernels` of the native library. See `kernels/interface.py` for every operation's contract.

    Args:
        isa: instruction tier: "auto" (the best that this machine has), "avx512", "avx512_vnni", "avx2_vnni",
            "avx2" or "portable".
        threads: size of the team; None takes the processors that this process may use.
        head_dim: elements of the largest heads to come.
        planning: weights have a size and no numbers. No step can run.

    Raises:
        Unsupported: the library is missing, or has no room for such heads.
        ConfigError: the machine has no such tier, or the system makes no team of that size.

    Weights that operations are given must come from `weight`.

    Attributes:
        table_bytes: see `Kernels`.
        captured: never filled: softmax weights are never whole here.
        lowering: makes the library's operations.
    """

    name = "native"
    captures = False

    def __init__(
        self, isa: str = "auto", threads: int | None = None, *, head_dim: int = 1, planning: bool = False
    ) -> None:
        library = load()
        if head_dim > library.MAX_HEAD_DIM:
            reason = f"the model's heads have {head_dim} elements, more than {library.MAX_HEAD_DIM}"
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
        """Size of the team; a step may do with fewer of them (`TeamSize`)."""
        return int(self.lowering.runtime.threads)

    @property
    def tier(self) -> str:
        """The instruction tier."""
        return str(self.lowering.runtime.tier)

    @property
    def scratch_bytes(self) -> int:
        """See `Kernels.scratch_bytes`: rows packed for products and each thread's own, its stack among it."""
        return int(self.lowering.runtime.scratch_bytes) + self.threads * _THREAD_BYTES

    def allocate(self, groups: tuple[PoolGroup, ...]) -> None:
        """See `Kernels.allocate`."""
        self._groups = {group.name: index for index, group in enumerate(groups)}
        self.lowering.runtime.allocate([_sizes(group) for group in groups])

    def planned_page_bytes(self, group: PoolGroup) -> int:
        """See `Kernels.planned_page_bytes`. A pool without pages tells it: only the library knows how it pads."""
        runtime = self.lowering.library.Runtime(self.tier, 1)
        runtime.allocate([_sizes(replace(group, num_pages=0))])
        return int(runtime.page_bytes(0))

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """See `Kernels.copy_pages`."""
        for copy in copies:
            self.lowering.runtime.copy_page(self._groups[copy.group], copy.source, copy.target)

    def page_bytes(self, group: str) -> int:
        """See `Kernels.page_bytes`."""
        return int(self.lowering.runtime.page_bytes(self._groups[group]))

    def read_page(self, group: str, page: int) -> Bytes:
        """See `Kernels.read_page`."""
        data = np.empty(self.page_bytes(group), np.uint8)
        self.lowering.runtime.read_page(self._groups[group], page, data)
        return data

    def write_page(self, group: str, page: int, data: Bytes) -> None:
        """See `Kernels.write_page`."""
        self.lowering.runtime.write_page(self._groups[group], page, data)

    def begin(self, tables: StepTables) -> None:
        """See `Kernels.begin`. The library copies the tables."""
        self._tables = tables
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
        """Run a program of the library on the step that has begun, by as many threads as its rows are worth."""
        runtime = self.lowering.runtime
        runtime.use(self._team_size.threads)
        begun = perf_counter()
        runtime.run(program)
        self._team_size.observe(perf_counter() - begun)

    @property
    def tables(self) -> StepTables:
        """The current step's tables."""
        assert self._tables is not None, "begin() comes first"
        return self._tables

    def weight(self, weight: Weight) -> PackedWeight:
        """See `ParameterForms.weight`: packed into panels, the original let go."""
        return pack(self.lowering.library, self.lowering.runtime, weight, blank=self._planning)

    def vector(self, values: F32) -> F32:
        """See `ParameterForms.vector`."""
        self.table_bytes += values.size * 4
        return np.ascontiguousarray(values, np.float32)

    def rope_table(self, frequencies: tuple[float, ...], scaling: float, length: int) -> tuple[F32, F32]:
        """See `ParameterForms.rope_table`. Steps fill it as far as they come."""
        rope = GrowingRope(frequencies, scaling, length)
        self._ropes.append(rope)
        self.table_bytes += rope.cosines.nbytes + rope.sines.nbytes
        return rope.cosines, rope.sines

    def embed(self, table: Weight) -> F32:
        """See `Operations.embed`."""
        return self._run("embed", (table,), (len(self.tables.token_ids), table.shape[1]))[0]

    def norm(self, x: F32, weight: F32, eps: float) -> F32:
        """See `Operations.norm`."""
        return self._run("norm", (placed(x), weight, eps), x.shape)[0]

    def add_norm(self, residual: F32, delta: F32, weight: F32, eps: float) -> tuple[F32, F32]:
        """See `Operations.add_norm`."""
        arguments = (placed(residual), placed(delta), weight, eps)
        total, normed = self._run("add_norm", arguments, residual.shape, residual.shape)
        return total, normed

    def linear(self, x: F32, weights: tuple[Weight, ...], biases: tuple[F32 | None, ...]) -> tuple[F32, ...]:
        """See `Operations.linear`."""
        return self._run("linear", (placed(x), weights, biases), *((len(x), weight.shape[0]) for weight in weights))

    def gated_linear(self, x: F32, gate: Weight, up: Weight) -> F32:
        """See `Operations.gated_linear`."""
        return self._run("gated_linear", (placed(x), gate, up), (len(x), gate.shape[0]))[0]

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
        """See `Operations.rope_store`."""
        arguments = (placed(q), placed(k), placed(v), shape, rope, q_norm, k_norm, eps)
        return self._run("rope_store", arguments, q.shape)[0]

    def attention(self, q: F32, shape: AttentionShape) -> F32:
        """See `Operations.attention`."""
        return self._run("attention", (placed(q), shape), q.shape)[0]

    def gather(self, x: F32) -> F32:
        """See `Operations.gather`."""
        return self._run("gather", (placed(x),), (len(self.tables.logit_rows), x.shape[1]))[0]

    def head(self, x: F32, weight: Weight) -> F32:
        """See `Operations.head`."""
        return self._run("head", (placed(x), weight), (len(x), weight.shape[0]))[0]

    def best(self, logits: F32) -> np.ndarray[Any, np.dtype[np.int32]]:
        """See `Operations.best`."""
        out = np.zeros((len(logits), 1), np.int32)
        rows = placed(logits)  # which may be a copy: it has to outlive the run
        self.lowering.runtime.run([self.lowering.operation("best", (rows,), (placed(out),))])
        return out

    def gather_hidden(self, x: F32) -> F32:
        """See `Operations.gather_hidden`."""
        return self._run("gather_hidden", (placed(x),), (len(self.tables.hidden_rows), x.shape[1]))[0]

    def finite(self, x: F32) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """See `Operations.finite`."""
        out = np.zeros((len(self.tables.span_rows) - 1, 1), np.bool_)
        rows = placed(x)  # as above
        self.lowering.runtime.run([self.lowering.operation("finite", (rows,), (placed(out),))])
        return out

    def _run(self, name: str, arguments: tuple[Any, ...], *shapes: tuple[int, ...]) -> tuple[F32, ...]:
        """Run one operation into new arrays of the given shapes."""
        outs = tuple(np.empty(shape, np.float32) for shape in shapes)
        operation = self.lowering.operation(name, arguments, tuple(map(placed, outs)))
        self.lowering.runtime.run([operation])
        return outs


def _sizes(group: PoolGroup) -> tuple[str, int, int, int, int, int, int]:
    """A layer group as the library is told of it."""
    sizes = group.num_pages, group.page_size, group.num_layers, group.num_kv_heads, group.key_dim, group.value_dim
    return group.format, *sizes


def _runtime(library: Any, tier: str, threads: int) -> Any:
    """A team of the library. Raises ConfigError where the system refuses its threads."""
    try:
        return library.Runtime(tier, threads)
    except RuntimeError as error:
        raise ConfigError(f"the system makes no team of {threads}: {error}", param="threads") from error
