"""Lowering of an operation of the `Operations` protocol to an operation of the native library.

Eager kernels lower one operation and run it. A replayed program lowers all operations once. Both run the same native
code on the same shapes, so their results are bit for bit equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.adapters import AdapterSite
from ferrum.kernels.cpu.weights import NativeSites, NativeWeight
from ferrum.kernels.curves import Curve, curve, scaling
from ferrum.kernels.group_weights import rows_of_group
from ferrum.kernels.op_attributes import Activation, AttentionShape, DeltaShape, EncoderShape, Routing
from ferrum.kernels.op_spec import Extent
from ferrum.kernels.operations import F32, Array
from ferrum.kernels.reference.reference_math import LOG2_E

EXTENTS: Final = {Extent.ROWS: -1, Extent.LOGITS: -2, Extent.HIDDEN: -3, Extent.SPANS: -4}
"""Codes of the library for row counts that vary by step. A number from 0 up is a constant row count."""

Native = Any
"""An operation of the library."""


@dataclass(frozen=True, slots=True)
class Operand:
    """The memory of an operation's argument or result.

    Attributes:
        array: contiguous memory for `max_rows` rows of `columns`.
        extent: number of rows, or a code of `EXTENTS`.
        columns: width of a row.
        max_rows: capacity in rows.
    """

    array: NDArray[Any]
    extent: int
    columns: int
    max_rows: int


@dataclass(frozen=True, slots=True)
class Lowering:
    """Factory of native operations: one method for each operation of `Operations`, by its name.

    A method takes arrays as operands, native weights and constants, and then the results.

    Attributes:
        library: the compiled module.
        runtime: a `Runtime` of the library with its pool allocated.
        sites: the adapters' sites in the library.
        exchange: with the other ranks, of the library; None: there are none.
    """

    library: Any
    runtime: Any
    sites: NativeSites = field(default_factory=NativeSites)
    exchange: Any = None

    def operation(self, name: str, arguments: tuple[Any, ...], results: Sequence[Operand]) -> Native:
        """Make the native form of an operation.

        Args:
            name: a method of `Operations`.
            arguments: arrays as operands, weights native, constants unchanged.
            results: memory of the results.
        """
        method: Callable[..., Native] = getattr(self, name)
        return method(*arguments, *results)

    def embed(self, table: NativeWeight, scale: float, stride: int, offset: int, out: Operand) -> Native:
        return self.library.embed(table.native, scale, stride, offset, out.array, out.extent)

    def add_given(
        self,
        x: Operand,  # noqa: ARG002 - the result has its memory
        offset: int,
        out: Operand,
    ) -> Native:
        return self.library.add_given(out.array, out.columns, offset, out.extent)

    def join(self, x: Operand, starts: tuple[int, ...], tiles: int, rounded: bool, out: Operand) -> Native:
        return self.library.join(self.exchange, x.array, list(starts), tiles, rounded, out.array, x.extent)

    def multiply(self, x: Operand, y: Operand, out: Operand) -> Native:
        return self.library.multiply(x.array, y.array, x.columns, out.array, x.extent)

    def norm(
        self,
        x: Operand,
        weight: F32,
        eps: float,
        bias: F32 | None,
        centred: bool,
        site: AdapterSite | None,
        out: Operand,
    ) -> Native:
        arrays, native = (x.array, None, weight, bias), self._site(site)
        return self.library.norm(self.runtime, *arrays, 1.0, eps, centred, None, out.array, x.extent, native)

    def add_norm(
        self,
        residual: Operand,
        delta: Operand,
        weight: F32,
        eps: float,
        bias: F32 | None,
        centred: bool,
        factor: float,
        site: AdapterSite | None,
        total: Operand,
        out: Operand,
    ) -> Native:
        arrays, outs = (residual.array, delta.array, weight, bias), (total.array, out.array)
        extent, native = residual.extent, self._site(site)
        return self.library.norm(self.runtime, *arrays, factor, eps, centred, *outs, extent, native)

    def add(self, x: Operand, y: Operand, factor: float, scale: float, gate: Operand | None, out: Operand) -> Native:
        arrays = x.array, y.array, _memory(gate)
        return self.library.add(*arrays, factor, scale, x.columns, out.array, x.extent)

    def linear(
        self,
        x: Operand,
        weights: tuple[NativeWeight, ...],
        biases: tuple[F32 | None, ...],
        activation: Activation | None,
        site: AdapterSite | None,
        *outs: Operand,
    ) -> Native:
        given = None if activation is None else curve(activation)
        return self._linear(x, weights, biases, given, outs, site)

    def _linear(
        self,
        x: Operand,
        weights: tuple[NativeWeight, ...],
        biases: tuple[F32 | None, ...],
        function: Curve | None,
        outs: Sequence[Operand],
        site: AdapterSite | None = None,
    ) -> Native:
        products = [(w.native, None, b, None, out.array) for w, b, out in zip(weights, biases, outs, strict=True)]
        return self.library.linear(self.runtime, x.array, products, function, x.extent, x.max_rows, self._site(site))

    def gated_linear(
        self,
        x: Operand,
        gate: NativeWeight,
        up: NativeWeight,
        activation: Activation,
        gate_bias: F32 | None,
        up_bias: F32 | None,
        out: Operand,
    ) -> Native:
        products = [(gate.native, up.native, gate_bias, up_bias, out.array)]
        return self.library.linear(self.runtime, x.array, products, curve(activation), x.extent, x.max_rows, None)

    def head(self, x: Operand, weight: NativeWeight, scale: float, softcap: float | None, out: Operand) -> Native:
        return self._linear(x, (weight,), (None,), scaling(scale, softcap), (out,))

    def activate(self, x: Operand, activation: Activation, out: Operand) -> Native:
        return self.library.activate(x.array, None, curve(activation), x.columns, out.array, x.extent)

    def gate(self, x: Operand, y: Operand, activation: Activation, out: Operand) -> Native:
        return self.library.activate(x.array, y.array, curve(activation), x.columns, out.array, x.extent)

    def scale_logits(self, x: Operand, scale: float, softcap: float | None, out: Operand) -> Native:
        return self.library.activate(x.array, None, scaling(scale, softcap), x.columns, out.array, x.extent)

    def adapt(
        self,
        x: Operand,
        ys: tuple[Operand, ...],  # noqa: ARG002 - the results have their memory
        site: AdapterSite,
        *outs: Operand,
    ) -> Native:
        heads = site.groups
        arrays, columns = [out.array for out in outs], [out.columns // heads for out in outs]
        return self.library.adapt(self.runtime, self._site(site), x.array, x.columns // heads, arrays, columns, heads)

    def adapt_embedding(
        self,
        y: Operand,  # noqa: ARG002 - the result has its memory
        site: AdapterSite,
        scale: float,
        out: Operand,
    ) -> Native:
        return self.library.adapt_embedding(self.runtime, self._site(site), out.array, out.columns, scale)

    def head_linear(self, x: Operand, weight: NativeWeight, heads: int, out: Operand) -> Native:
        rows_of_group(weight, heads, "heads")
        return self.library.head_linear(self.runtime, x.array, out.array, weight.native, heads, x.extent, x.max_rows)

    def experts(
        self,
        x: Operand,
        scores: Operand,
        routing: Routing,
        gate: NativeWeight,
        up: NativeWeight,
        down: NativeWeight,
        activation: Activation,
        selection_bias: F32 | None,
        expert_scale: F32 | None,
        gate_bias: F32 | None,
        up_bias: F32 | None,
        down_bias: F32 | None,
        site: AdapterSite | None,
        inner: tuple[int, ...],
        out: Operand,
    ) -> Native:
        for weight in (gate, up, down):
            rows_of_group(weight, routing.num_experts, "experts")
        weights = gate.native, up.native, down.native
        vectors = selection_bias, expert_scale, gate_bias, up_bias, down_bias
        given = astuple(routing), weights, vectors, curve(activation)
        ranks = self._site(site), self.exchange, list(inner)
        return self.library.experts(
            self.runtime, x.array, scores.array, out.array, *given, x.extent, x.max_rows, *ranks
        )

    def rope_store(
        self,
        q: Operand,
        k: Operand | None,
        v: Operand | None,
        shape: AttentionShape,
        rope: tuple[F32, F32] | None,
        q_norm: F32 | None,
        k_norm: F32 | None,
        eps: float,
        v_norm: F32 | None,
        norm_last: bool,
        temperature: F32 | None,
        site: AdapterSite | None,
        axes: tuple[int, ...],
        out: Operand,
    ) -> Native:
        arrays = q.array, _memory(k), _memory(v), out.array
        tables = rope if rope is not None else (None, None)
        norms = q_norm, k_norm, v_norm
        return self.library.rope_store(
            self.runtime,
            *arrays,
            _sizes(shape),
            *tables,
            norms,
            eps,
            norm_last,
            temperature,
            q.extent,
            self._site(site),
            list(axes),
        )

    def latent_store(
        self,
        q: Operand,
        q_rope: Operand,
        latent: Operand,
        k_rope: Operand,
        shape: AttentionShape,
        rope: tuple[F32, F32],
        out: Operand,
    ) -> Native:
        arrays = (q.array, q_rope.array, latent.array, k_rope.array, out.array)
        return self.library.latent_store(self.runtime, *arrays, _sizes(shape), *rope, q.extent)

    def attention(self, q: Operand, shape: AttentionShape, sinks: F32 | None, out: Operand) -> Native:
        scores = scaling(shape.scale, shape.softcap, float(LOG2_E))
        seen = shape.window or 0, shape.chunk or 0, shape.causal
        return self.library.attention(self.runtime, q.array, out.array, _sizes(shape), scores, sinks, *seen)

    def embed_positions(self, table: NativeWeight, out: Operand) -> Native:
        return self.library.embed_positions(table.native, out.array, out.extent)

    def rotate(
        self,
        x: Operand,
        heads: int,
        rope: tuple[F32, F32] | None,
        axes: tuple[int, ...],
        norm: F32 | None,
        eps: float,
        out: Operand,
    ) -> Native:
        tables = rope if rope is not None else (None, None)
        sizes = heads, x.columns // heads
        return self.library.rotate(x.array, *sizes, *tables, norm, eps, out.array, x.extent, list(axes))

    def attend_all(self, q: Operand, k: Operand, v: Operand, shape: EncoderShape, out: Operand) -> Native:
        arrays, sizes = (q.array, k.array, v.array, out.array), (shape.format, shape.num_heads, shape.head_dim)
        scores = scaling(shape.scale, None, float(LOG2_E))
        return self.library.attend_all(self.runtime, *arrays, *sizes, scores, q.max_rows)

    def short_conv(
        self,
        x: Operand,
        weight: F32,
        slot: tuple[int, int],
        bias: F32 | None,
        activation: Activation | None,
        out: Operand,
    ) -> Native:
        given = None if activation is None else curve(activation)
        return self.library.short_conv(self.runtime, x.array, weight, bias, given, *slot, x.columns, out.array)

    def delta_rule(
        self, x: Operand, a: Operand, b: Operand, decay: F32, shift: F32, shape: DeltaShape, out: Operand
    ) -> Native:
        scale = float(np.float32(shape.key_dim**-0.5))
        arrays = x.array, a.array, b.array, decay, shift
        return self.library.delta_rule(self.runtime, *arrays, astuple(shape), scale, out.array)

    def gated_norm(
        self, x: Operand, gate: Operand, weight: F32, eps: float, heads: int, activation: Activation, out: Operand
    ) -> Native:
        arrays = x.array, gate.array, weight
        return self.library.gated_norm(*arrays, eps, heads, curve(activation), out.array, x.extent)

    def gather(self, x: Operand, out: Operand) -> Native:
        return self.library.gather(x.array, out.array, x.columns, EXTENTS[Extent.LOGITS])

    def best(self, logits: Operand, out: Operand) -> Native:
        return self.library.best(self.runtime, logits.array, out.array, logits.columns, logits.extent, logits.max_rows)

    def gather_hidden(self, x: Operand, out: Operand) -> Native:
        return self.library.gather(x.array, out.array, x.columns, EXTENTS[Extent.HIDDEN])

    def finite(self, x: Operand, out: Operand) -> Native:
        return self.library.finite(x.array, out.array, x.columns)

    def _site(self, site: AdapterSite | None) -> Any:
        """Return the library's site; None without one."""
        return None if site is None else self.sites.native(site, self.library)


def operand(array: Array) -> Operand:
    """Wrap an array [rows, columns], copied if it is not contiguous."""
    contiguous = np.ascontiguousarray(array)
    return Operand(contiguous, len(contiguous), contiguous.shape[1], len(contiguous))


def _memory(operand: Operand | None) -> NDArray[Any] | None:
    return None if operand is None else operand.array


def _sizes(shape: AttentionShape) -> tuple[int, int, int, int, int, int]:
    """Return a shape as the library takes it."""
    value_dim = shape.head_dim if shape.value_dim is None else shape.value_dim
    return shape.group, shape.layer, shape.num_heads, shape.num_kv_heads, shape.head_dim, value_dim
