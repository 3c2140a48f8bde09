"""The numpy backend: the specification of every other backend.

It implements `docs/numerics.md` and is not optimised for speed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.cache.page_table import PageCopy
from ferrum.kernels.adapters import AdapterSite, Change, SiteKind
from ferrum.kernels.exchange import Exchange
from ferrum.kernels.interface import Kernels, PoolGroup, StatePool, StepTables, with_carried
from ferrum.kernels.numerics import NUMERICS_ID
from ferrum.kernels.op_attributes import SILU, Activation, AttentionShape, DeltaShape, EncoderShape, Routing
from ferrum.kernels.op_spec import Extent, Program
from ferrum.kernels.operations import F32, Bytes, Weight
from ferrum.kernels.recorded_program import Interpreter
from ferrum.kernels.reference.fused_sums import fused
from ferrum.kernels.reference.page_checksums import page_sums
from ferrum.kernels.reference.page_layout import PageLayout
from ferrum.kernels.reference.reference_adapters import ExpertChanges, changed, changed_embeddings, changed_heads
from ferrum.kernels.reference.reference_attention import (
    PRODUCTS,
    STEP,
    Sights,
    attend,
    attend_all,
    first_seen,
    probabilities,
)
from ferrum.kernels.reference.reference_experts import add_experts, multiply_heads, route
from ferrum.kernels.reference.reference_math import best_tokens
from ferrum.kernels.reference.reference_rows import (
    NormChanges,
    activated,
    biased,
    capped,
    gated,
    normed,
    rope_rows,
    sigmoid,
)
from ferrum.kernels.reference.reference_states import StateMemory, advance_delta, convolve
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
        self.states: StateMemory | None = None
        self.exchange: Exchange | None = None

    def share(self, memory: Bytes, rank: int, ranks: int) -> Exchange:
        self.exchange = Exchange(memory, rank, ranks)
        return self.exchange

    def allocate(self, groups: tuple[PoolGroup, ...], states: StatePool | None = None) -> None:
        self._groups = groups
        self.states = None if states is None else StateMemory(states)
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
        if self.states is not None and tables.states is not None:
            self.states.check(tables)
        self._tables = tables._replace(token_ids=with_carried(tables)) if tables.carried else tables

    @property
    def slot_bytes(self) -> int:
        return self._state_memory.slot_bytes

    def copy_slot(self, source: int, target: int) -> None:
        self._state_memory.copy_slot(source, target)

    def read_slot(self, slot: int) -> Bytes:
        return self._state_memory.read_slot(slot)

    def write_slot(self, slot: int, data: Bytes) -> None:
        self._state_memory.write_slot(slot, data)

    @property
    def _state_memory(self) -> StateMemory:
        assert self.states is not None, "no layer has a state"
        return self.states

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

    def embed(self, table: Weight, scale: float = 1.0, stride: int = 1, offset: int = 0) -> F32:
        rows: F32 = table.rows(self.tables.token_ids * stride + offset) * np.float32(scale)
        given = self.tables.given
        if given is not None and stride == 1 and rows.shape[1] == given.values.shape[1]:  # else no embeddings
            rows[given.rows] = given.values
        return rows

    def norm(
        self,
        x: F32,
        weight: F32,
        eps: float,
        bias: F32 | None = None,
        centred: bool = False,
        site: AdapterSite | None = None,
    ) -> F32:
        y = normed(x, weight, eps, bias, centred)
        return y if site is None else self._norms(site).change(x, y, weight, eps, bias, centred)

    def _norms(self, site: AdapterSite) -> NormChanges:
        return NormChanges(self.tables.adapters, site)

    def add_norm(
        self,
        residual: F32,
        delta: F32,
        weight: F32,
        eps: float,
        bias: F32 | None = None,
        centred: bool = False,
        factor: float = 1.0,
        site: AdapterSite | None = None,
    ) -> tuple[F32, F32]:
        total = fused(delta, np.float32(factor), residual)
        return total, self.norm(total, weight, eps, bias, centred, site)

    def add(self, x: F32, y: F32, factor: float = 1.0, scale: float = 1.0, gate: F32 | None = None) -> F32:
        return fused(y, np.float32(factor) if gate is None else sigmoid(gate), x) * np.float32(scale)

    def join(self, x: F32, starts: tuple[int, ...], tiles: int = 1, rounded: bool = False) -> F32:
        if self.exchange is None:
            return x.copy()
        return self.exchange.join(x.reshape(tiles * len(x), -1), starts, rounded=rounded).reshape(len(x), -1)

    def multiply(self, x: F32, y: F32) -> F32:
        return x * y

    def linear(
        self,
        x: F32,
        weights: tuple[Weight, ...],
        biases: tuple[F32 | None, ...],
        activation: Activation | None = None,
        site: AdapterSite | None = None,
    ) -> tuple[F32, ...]:
        products = tuple(biased(weight.matmul(x), bias) for weight, bias in zip(weights, biases, strict=True))
        if site is not None:
            return self.adapt(x, products, site)
        return products if activation is None else tuple(activated(y, activation) for y in products)

    def gated_linear(
        self,
        x: F32,
        gate: Weight,
        up: Weight,
        activation: Activation = SILU,
        gate_bias: F32 | None = None,
        up_bias: F32 | None = None,
    ) -> F32:
        return gated(biased(gate.matmul(x), gate_bias), biased(up.matmul(x), up_bias), activation)

    def activate(self, x: F32, activation: Activation) -> F32:
        return activated(x, activation)

    def gate(self, x: F32, y: F32, activation: Activation = SILU) -> F32:
        return gated(x, y, activation)

    def adapted(self, changes: tuple[Change | None, ...], memory: None = None) -> tuple[Change | None, ...]:  # noqa: ARG002
        return changes

    def install(self, site: AdapterSite, slot: int, entry: tuple[Change | None, ...] | None) -> None:
        if entry is None:
            site.entries.pop(slot, None)
        else:
            site.entries[slot] = entry

    def adapt(self, x: F32, ys: tuple[F32, ...], site: AdapterSite) -> tuple[F32, ...]:
        outs = tuple(y.copy() for y in ys)
        for each in self.tables.adapters:
            rows = each.logit_rows if site.kind is SiteKind.HEAD else each.rows
            for out, change in zip(outs, site.entries.get(each.slot, ()), strict=False):
                if change is None:
                    continue
                if site.kind is SiteKind.HEADS:
                    out[rows] = changed_heads(x[rows], out[rows], change, each.scale, site.groups)
                else:
                    out[rows] = changed(x[rows], out[rows], change, each.scale)
        return outs

    def adapt_embedding(self, y: F32, site: AdapterSite, scale: float = 1.0) -> F32:
        y, given = y.copy(), self.tables.given
        for each in self.tables.adapters:
            rows = each.rows if given is None else np.setdiff1d(each.rows, given.rows)
            for change in site.entries.get(each.slot, ()):
                y[rows] = changed_embeddings(self.tables.token_ids[rows], y[rows], change, scale, each.scale)
        return y

    def head_linear(self, x: F32, weight: Weight, heads: int) -> F32:
        return multiply_heads(x, weight, heads)

    def experts(
        self,
        x: F32,
        scores: F32,
        routing: Routing,
        gate: Weight,
        up: Weight,
        down: Weight,
        activation: Activation = SILU,
        selection_bias: F32 | None = None,
        expert_scale: F32 | None = None,
        gate_bias: F32 | None = None,
        up_bias: F32 | None = None,
        down_bias: F32 | None = None,
        site: AdapterSite | None = None,
        inner: tuple[int, ...] = (),
    ) -> F32:
        changes = None if site is None else ExpertChanges(self.tables.adapters, site)
        routed = route(scores, routing, selection_bias, expert_scale)
        weights, biases = (gate, up, down), (gate_bias, up_bias, down_bias)
        join = partial(self.join, starts=inner) if inner else None
        return add_experts(x, routed, weights, biases, activation, routing, changes, join)

    def rope_store(
        self,
        q: F32,
        k: F32 | None,
        v: F32 | None,
        shape: AttentionShape,
        rope: RopeTable | None,
        q_norm: F32 | None,
        k_norm: F32 | None,
        eps: float,
        v_norm: F32 | None = None,
        norm_last: bool = False,
        temperature: F32 | None = None,
        site: AdapterSite | None = None,
        axes: tuple[int, ...] = (),
    ) -> F32:
        def turned(x: F32, heads: int, weight: F32 | None, index: int) -> F32:
            x = x.reshape(len(x), heads, -1)
            if weight is not None and site is not None:
                weight = self._norms(site).weights(weight, index, len(x))
            if weight is not None and not norm_last:
                x = normed(x, weight, eps)
            if rope is not None:
                x = self._rotated(x, rope, axes)
            return normed(x, weight, eps) if weight is not None and norm_last else x

        if k is not None and v is not None:
            values = v.reshape(len(v), shape.num_kv_heads, -1)
            values = values if v_norm is None else normed(values, v_norm, eps)
            self._write(shape, turned(k, shape.num_kv_heads, k_norm, 1), values)
        q = turned(q, shape.num_heads, q_norm, 0)
        if temperature is not None:
            q = q * temperature[self.tables.positions][:, None, None]
        return q.reshape(len(q), -1)

    def latent_store(
        self, q: F32, q_rope: F32, latent: F32, k_rope: F32, shape: AttentionShape, rope: RopeTable
    ) -> F32:
        def joined(x: F32, turned: F32, heads: int) -> F32:
            parts = x.reshape(len(x), heads, -1), self._rotated(turned.reshape(len(x), heads, -1), rope)
            return np.concatenate(parts, axis=-1)

        pages, offsets = self._slots(shape.group)
        self._keys[shape.group].write(shape.layer, pages, offsets, joined(latent, k_rope, 1))
        return joined(q, q_rope, shape.num_heads).reshape(len(q), -1)

    def _rotated(self, x: F32, rope: RopeTable, axes: tuple[int, ...] = ()) -> F32:
        """Rotate the heads of x [R, heads, dim]."""
        tables = self.tables
        if axes and tables.places is not None:
            where = tables.places[:, axes], np.arange(len(axes))  # [R, pairs]
            cos, sin = (table[where][:, None] for table in rope)
        else:
            cos, sin = (table[tables.positions][:, None] for table in rope)
        return _rotate(x, cos, sin)

    def _write(self, shape: AttentionShape, keys: F32, values: F32) -> None:
        """Write keys and values [R, kv_heads, dim] to the pool."""
        pages, offsets = self._slots(shape.group)
        self._keys[shape.group].write(shape.layer, pages, offsets, keys)
        self._values[shape.group].write(shape.layer, pages, offsets, values)

    def _slots(self, group: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the page and the offset of each row of the step."""
        tables, size = self.tables, self._groups[group].page_size
        span = np.repeat(np.arange(len(tables.span_rows) - 1), np.diff(tables.span_rows))
        return tables.pages[group][span, tables.positions // size], tables.positions % size

    def attention(self, q: F32, shape: AttentionShape, sinks: F32 | None = None) -> F32:
        q = q.reshape(len(q), shape.num_heads, shape.head_dim)
        group = self._groups[shape.group]
        out = np.empty((len(q), shape.output_columns), np.float32)
        products = PRODUCTS[group.format]
        seen: list[F32] = []
        bounds, positions = self.tables.span_rows, self.tables.positions
        last = positions if shape.causal or self.tables.last_seen is None else self.tables.last_seen
        for span, (begin, end) in enumerate(pairwise(bounds)):
            sights = Sights(positions[begin:end], last[begin:end])
            first = int(first_seen(sights.positions[0], shape)) // STEP * STEP
            where = shape.layer, self.tables.pages[shape.group][span], first, int(sights.last[-1]) + 1
            keys = self._keys[shape.group].read(*where)
            # Without values, those of latent attention are a part of the keys.
            values = self._values[shape.group].read(*where) if group.value_dim else keys.first(shape.value_dim or 0)
            rows = q[begin:end]
            out[begin:end] = attend(rows, keys, values, sights, first, shape, products, sinks).reshape(len(rows), -1)
            if self.captured is not None:
                weights = probabilities(rows, keys.numbers(), sights, first, shape, sinks)
                seen.append(np.pad(weights, ((0, 0), (0, 0), (first, 0))))
        if self.captured is not None:
            self.captured.append(seen)
        return out

    def add_given(self, x: F32, offset: int = 0) -> F32:
        given, found = self.tables.given, x.copy()
        if given is not None and given.added is not None:
            found[given.rows] += given.added[:, offset : offset + x.shape[1]]
        return found

    def embed_positions(self, table: Weight) -> F32:
        rows: F32 = table.rows(self.tables.positions)
        return rows

    def rotate(
        self,
        x: F32,
        heads: int,
        rope: RopeTable | None,
        axes: tuple[int, ...] = (),
        norm: F32 | None = None,
        eps: float = 0.0,
    ) -> F32:
        y = x.reshape(len(x), heads, -1)
        y = y if norm is None else normed(y, norm, eps)
        return (y if rope is None else self._rotated(y, rope, axes)).reshape(x.shape)

    def attend_all(self, q: F32, k: F32, v: F32, shape: EncoderShape) -> F32:
        bounds = pairwise(self.tables.span_rows)
        return np.concatenate([attend_all(q[a:b], k[a:b], v[a:b], shape) for a, b in bounds])

    def short_conv(
        self,
        x: F32,
        weight: F32,
        slot: tuple[int, int],
        bias: F32 | None = None,
        activation: Activation | None = None,
    ) -> F32:
        y = self._state_memory.advance(*slot, self.tables, x, lambda state, row: convolve(state, row, weight))
        y = biased(y, bias)
        return y if activation is None else activated(y, activation)

    def delta_rule(self, x: F32, a: F32, b: F32, decay: F32, shift: F32, shape: DeltaShape) -> F32:
        def apply(state: F32, row: F32) -> F32:
            return advance_delta(state, row, decay, shift, shape)

        rows = np.concatenate([x, a, b], axis=1)
        return self._state_memory.advance(shape.group, shape.layer, self.tables, rows, apply)

    def gated_norm(self, x: F32, gate: F32, weight: F32, eps: float, heads: int, activation: Activation = SILU) -> F32:
        y = normed(x.reshape(len(x), heads, len(weight)), weight, eps).reshape(x.shape)
        return gated(gate, y, activation)

    def gather(self, x: F32) -> F32:
        return x[self.tables.logit_rows]

    def head(self, x: F32, weight: Weight, scale: float = 1.0, softcap: float | None = None) -> F32:
        return self.scale_logits(weight.matmul(x), scale, softcap)

    def scale_logits(self, x: F32, scale: float = 1.0, softcap: float | None = None) -> F32:
        return x * np.float32(scale) if softcap is None else capped(x, scale, softcap)

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
