"""The numpy backend: the specification of every other backend.

It implements `docs/numerics.md` and is not optimised for speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.cache.page_table import PageCopy
from ferrum.kernels.interface import F32, AttentionShape, Bytes, Kernels, PoolGroup, StepTables, Weight
from ferrum.kernels.interpreter import Interpreter
from ferrum.kernels.numerics import NUMERICS_ID
from ferrum.kernels.op_spec import Extent, Program
from ferrum.kernels.reference.fused_sums import fused
from ferrum.kernels.reference.page_checksums import page_sums
from ferrum.kernels.reference.page_layout import PageLayout
from ferrum.kernels.reference.reference_attention import PRODUCTS, STEP, attend, probabilities
from ferrum.kernels.reference.reference_math import best_tokens, silu, squares_sum
from ferrum.kernels.reference.reference_rope import rope_rows
from ferrum.kernels.reference.store import Store
from ferrum.kernels.services import PageSums

RopeTable = tuple[F32, F32]


class ReferenceKernels(Kernels):
    """`Kernels` in numpy."""

    name = "reference"
    numerics_id = NUMERICS_ID
    captures = True
    scratch_bytes = 0

    def __init__(self) -> None:
        self.captured: list[list[Any]] | None = None
        self.table_bytes = 0
        self._groups: tuple[PoolGroup, ...] = ()
        self._keys: list[Store] = []  # per group
        self._values: list[Store] = []
        self._tables: StepTables | None = None

    def allocate(self, groups: tuple[PoolGroup, ...]) -> None:
        self._groups = groups
        for group in groups:
            self._keys.append(Store(group, group.key_dim))
            self._values.append(Store(group, group.value_dim))

    def planned_page_bytes(self, group: PoolGroup) -> int:
        one = replace(group, num_pages=1)
        return sum(part.nbytes for dim in (group.key_dim, group.value_dim) for part in Store(one, dim).page(0))

    def prepare(self, program: Program, limits: Mapping[Extent, int]) -> Interpreter:
        return Interpreter(program, limits)

    def page_sums(self) -> PageSums:
        return page_sums

    def begin(self, tables: StepTables) -> None:
        self._tables = tables

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        for copy in copies:
            at = self._index(copy.group)
            for store in (self._keys[at], self._values[at]):
                store.copy(copy.source, copy.target)

    def page_bytes(self, group: str) -> int:
        return PageLayout(self._groups[self._index(group)]).nbytes

    def read_page(self, group: str, page: int) -> Bytes:
        at = self._index(group)
        return PageLayout(self._groups[at]).pack(self._keys[at].page(page), self._values[at].page(page))

    def write_page(self, group: str, page: int, data: Bytes) -> None:
        at = self._index(group)
        PageLayout(self._groups[at]).unpack(data, self._keys[at].page(page), self._values[at].page(page))

    def _index(self, group: str) -> int:
        return next(i for i, each in enumerate(self._groups) if each.name == group)

    @property
    def tables(self) -> StepTables:
        """Return the tables of the current step."""
        assert self._tables is not None, "begin() comes first"
        return self._tables

    def weight(self, weight: Weight) -> Weight:
        return weight

    def vector(self, values: F32) -> F32:
        self.table_bytes += values.size * 4
        return np.ascontiguousarray(values, np.float32)

    def rope_table(self, frequencies: tuple[float, ...], scaling: float, length: int) -> RopeTable:
        cosines, sines = rope_rows(frequencies, scaling, 0, length)
        self.table_bytes += cosines.nbytes + sines.nbytes
        return cosines, sines

    def embed(self, table: Weight) -> F32:
        if self.tables.embeddings is not None:
            return self.tables.embeddings
        return table.rows(self.tables.token_ids)

    def norm(self, x: F32, weight: F32, eps: float) -> F32:
        mean = squares_sum(x) / np.float32(x.shape[-1])
        inverse: F32 = np.float32(1) / np.sqrt(mean + np.float32(eps))
        return x * inverse[..., None] * weight

    def add_norm(self, residual: F32, delta: F32, weight: F32, eps: float) -> tuple[F32, F32]:
        total = residual + delta
        return total, self.norm(total, weight, eps)

    def linear(self, x: F32, weights: tuple[Weight, ...], biases: tuple[F32 | None, ...]) -> tuple[F32, ...]:
        products = (weight.matmul(x) for weight in weights)
        return tuple(y if bias is None else y + bias for y, bias in zip(products, biases, strict=True))

    def gated_linear(self, x: F32, gate: Weight, up: Weight) -> F32:
        return silu(gate.matmul(x)) * up.matmul(x)

    def rope_store(
        self,
        q: F32,
        k: F32,
        v: F32,
        shape: AttentionShape,
        rope: RopeTable | None,
        q_norm: F32 | None,
        k_norm: F32 | None,
        eps: float,
    ) -> F32:
        q = q.reshape(len(q), shape.num_heads, shape.head_dim)
        k = k.reshape(len(k), shape.num_kv_heads, shape.head_dim)
        q = q if q_norm is None else self.norm(q, q_norm, eps)
        k = k if k_norm is None else self.norm(k, k_norm, eps)
        if rope is not None:
            cos, sin = rope[0][self.tables.positions][:, None], rope[1][self.tables.positions][:, None]
            q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        pages, offsets = self._slots(shape.group)
        self._keys[shape.group].write(shape.layer, pages, offsets, k)
        self._values[shape.group].write(shape.layer, pages, offsets, v.reshape(len(v), shape.num_kv_heads, -1))
        return q.reshape(len(q), -1)

    def _slots(self, group: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the page and the offset of each row of the step."""
        tables, size = self.tables, self._groups[group].page_size
        span = np.repeat(np.arange(len(tables.span_rows) - 1), np.diff(tables.span_rows))
        return tables.pages[group][span, tables.positions // size], tables.positions % size

    def attention(self, q: F32, shape: AttentionShape) -> F32:
        q = q.reshape(len(q), shape.num_heads, shape.head_dim)
        out = np.empty((len(q), shape.num_heads, self._groups[shape.group].value_dim), np.float32)
        products = PRODUCTS[self._groups[shape.group].format]
        seen: list[F32] = []
        bounds = self.tables.span_rows
        for span, (begin, end) in enumerate(pairwise(bounds)):
            positions = self.tables.positions[begin:end]
            first = 0 if shape.window is None else max(0, int(positions[0]) - shape.window + 1) // STEP * STEP
            where = shape.layer, self.tables.pages[shape.group][span], first, int(positions[-1]) + 1
            keys, values = self._keys[shape.group].read(*where), self._values[shape.group].read(*where)
            rows = q[begin:end]
            out[begin:end] = attend(rows, keys, values, positions, first, shape, products)
            if self.captured is not None:
                weights = probabilities(rows, keys.numbers(), positions, first, shape)
                seen.append(np.pad(weights, ((0, 0), (0, 0), (first, 0))))
        if self.captured is not None:
            self.captured.append(seen)
        return out.reshape(len(q), -1)

    def gather(self, x: F32) -> F32:
        return x[self.tables.logit_rows]

    def head(self, x: F32, weight: Weight) -> F32:
        return weight.matmul(x)

    def best(self, logits: F32) -> NDArray[np.int32]:
        return best_tokens(logits)[:, None]

    def gather_hidden(self, x: F32) -> F32:
        return x[self.tables.hidden_rows]

    def finite(self, x: F32) -> NDArray[np.bool_]:
        rows = np.all(np.isfinite(x), axis=1)
        bounds = self.tables.span_rows
        return np.array([[rows[a:b].all()] for a, b in pairwise(bounds)], np.bool_)


def _rotate(x: F32, cos: F32, sin: F32) -> F32:
    """Rotate the pairs (i, i + pairs) of x [R, heads, dim] by cos and sin [R, 1, pairs]; keep further dimensions."""
    pairs = cos.shape[-1]
    low, high, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    return np.concatenate((fused(low, cos, -(high * sin)), fused(high, cos, low * sin), rest), axis=-1)
