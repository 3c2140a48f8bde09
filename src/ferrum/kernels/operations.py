"""The operations of a decoder, and what they compute on.

`nn/` and `models/` call `Operations` and see opaque arrays without a row count. Operations are functional, except for
those that write the pool.

Letters: R rows of the step (all tokens of all spans), G rows with requested logits, P rows with requested hidden
states, H hidden size, V vocabulary, N outputs and K inputs of a product.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import Unsupported
from ferrum.kernels.adapters import AdapterSite
from ferrum.kernels.op_attributes import SILU, Activation, AttentionShape, DeltaShape, EncoderShape, Routing
from ferrum.kernels.op_spec import Extent, Kind, OpSpec, Pool, Value, operation

Array = Annotated[Any, Kind.VALUE]
"""Rows of a step: an array of the backend, or a `Value` while recording. Above the backend only `len(array)`, a row
`array[i]`, a run of rows `array[a:b]` and its `copy()` are used; `Kernels.host` gives the numbers."""

Vector = Annotated[Any, Kind.VECTOR]
"""A norm weight, bias or rope table in the form of the backend."""

Int32 = NDArray[np.int32]
F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Weight(Protocol):
    """A matrix [N, K] in a format of `quant/`.

    Attributes:
        shape: (N, K): outputs, inputs.
        format: name ("float32", "bfloat16", "int8", ...).
        nbytes: bytes held.
    """

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def format(self) -> str: ...
    @property
    def nbytes(self) -> int: ...

    def matmul(self, x: F32) -> F32:
        """Multiply x [M, K] f32 -> [M, N] f32, with the rounding of the format and a fixed order of additions."""

    def rows(self, ids: Int32) -> F32:
        """Return the given rows [len(ids), K], dequantised: an embedding look-up."""

    def part(self, begin: int, end: int) -> Weight:
        """Return rows `begin` to `end` - 1 as a weight, without a copy where the format allows."""

    def dequantize(self) -> F32:
        """Return the matrix [N, K] as f32. Backends without native support for a format use this."""


Matrix = Annotated[Weight, Kind.MATRIX]
"""A weight that an operation multiplies by."""

Table = Annotated[Weight, Kind.TABLE]
"""A weight whose rows an operation looks up."""


class Operations(Protocol):
    """The operations that a network calls in a step.

    Each method declares one: its signature the operands, its body the shapes of the results. A new attribute gets a
    default, so that no other network changes.
    """

    def compute(self, spec: OpSpec, arguments: tuple[Any, ...]) -> Any:
        """Record or run an operation whose method is not overridden."""
        raise Unsupported(f"the operation {spec.name}", f"{type(self).__name__} does not implement it")

    @operation()
    def embed(self, table: Table, scale: float = 1.0, stride: int = 1, offset: int = 0) -> Array:
        """Look up rows of the step's tokens, times `scale` -> [R, H].

        With a stride of 1 these are the rows of the token ids, and given rows replace some of them, see `StepTables`.
        A table of several rows per token (per-layer embeddings) has a larger stride: row token x stride + offset.
        """
        return Value(Extent.ROWS, table.shape[1])

    @operation(in_place="x")
    def add_given(self, x: Array, offset: int = 0) -> Array:
        """Add columns of `GivenRows.added` from `offset` on to the given rows of the step: [R, H] -> [R, H].

        Other rows stay as they are, and so do all in a step without such columns.
        """
        return x.like()

    @operation()
    def norm(
        self,
        x: Array,
        weight: Vector,
        eps: float,
        bias: Vector | None = None,
        centred: bool = False,
        site: AdapterSite | None = None,
    ) -> Array:
        """Apply RMSNorm: x / sqrt(mean(x^2) + eps) * weight + bias, [R, H] -> [R, H].

        Source: Zhang and Sennrich 2019. If it is `centred`, the row's mean is subtracted from x before: LayerNorm.
        Adapters of the site replace the weight and the bias for their rows.
        """
        return x.like()

    @operation()
    def add_norm(
        self,
        residual: Array,
        delta: Array,
        weight: Vector,
        eps: float,
        bias: Vector | None = None,
        centred: bool = False,
        factor: float = 1.0,
        site: AdapterSite | None = None,
    ) -> tuple[Array, Array]:
        """Return residual + factor x delta and its norm, both [R, H]. The site is that of `norm`."""
        return residual.like(), residual.like()

    @operation()
    def add(self, x: Array, y: Array, factor: float = 1.0, scale: float = 1.0, gate: Array | None = None) -> Array:
        """Return (x + factor y) scale; with a gate [R, 1], (x + sigmoid(gate) y) scale. All [R, H]."""
        return x.like()

    @operation()
    def multiply(self, x: Array, y: Array) -> Array:
        """Return x y, number by number, [R, H]."""
        return x.like()

    @operation()
    def linear(
        self,
        x: Array,
        weights: tuple[Matrix, ...],
        biases: tuple[Vector | None, ...],
        activation: Activation | None = None,
        site: AdapterSite | None = None,
    ) -> tuple[Array, ...]:
        """Multiply one input by each weight, add the bias, activate: [R, K] -> [R, N] each.

        At a site nothing is activated, and the adapters of each row (`StepTables.adapters`) change its products, see
        `adapters.Change`.
        """
        return tuple(x.like(weight.shape[0]) for weight in weights)

    @operation()
    def gated_linear(
        self,
        x: Array,
        gate: Matrix,
        up: Matrix,
        activation: Activation = SILU,
        gate_bias: Vector | None = None,
        up_bias: Vector | None = None,
    ) -> Array:
        """Activate a gate and multiply: activation(x gate^T + bias) * (x up^T + bias), [R, K] -> [R, N].

        Source: Shazeer 2020. Both biases are given, or none.
        """
        return x.like(gate.shape[0])

    @operation()
    def activate(self, x: Array, activation: Activation) -> Array:
        """Activate each number, as `linear` does after its bias: [R, N] -> [R, N]."""
        return x.like()

    @operation()
    def gate(self, x: Array, y: Array, activation: Activation = SILU) -> Array:
        """Return activation(x) y, as `gated_linear` does after its biases: [R, N] -> [R, N]."""
        return x.like()

    @operation(in_place="ys")
    def adapt(self, x: Array, ys: tuple[Array, ...], site: AdapterSite) -> tuple[Array, ...]:
        """Change the products of x by the adapters of each row (`StepTables.adapters`), see `adapters.Change`.

        [R, K], [R, N] each -> [R, N] each; of heads [R, heads x K], [R, heads x N] -> [R, heads x N].
        """
        return tuple(y.like() for y in ys)

    @operation(in_place="y")
    def adapt_embedding(self, y: Array, site: AdapterSite, scale: float = 1.0) -> Array:
        """Change embeddings of tokens, which were multiplied by `scale`, by the adapters of each row: [R, H].

        Given rows stay as they are.
        """
        return y.like()

    @operation()
    def head_linear(self, x: Array, weight: Matrix, heads: int) -> Array:
        """Multiply each head of x by its own rows of the weight [heads x N, K]: [R, heads x K] -> [R, heads x N]."""
        return x.like(weight.shape[0])

    @operation()
    def experts(
        self,
        x: Array,
        scores: Array,
        routing: Routing,
        gate: Matrix,
        up: Matrix,
        down: Matrix,
        activation: Activation = SILU,
        selection_bias: Vector | None = None,
        expert_scale: Vector | None = None,
        gate_bias: Vector | None = None,
        up_bias: Vector | None = None,
        down_bias: Vector | None = None,
        site: AdapterSite | None = None,
        inner: tuple[int, ...] = (),
    ) -> Array:
        """Send each row to its experts and add their weighted results: [R, H] -> [R, H] (Shazeer et al. 2017).

        Args:
            x: inputs [R, H].
            scores: of the router, before `Routing.score`: [R, experts].
            gate, up: [experts x N, H], the rows of one expert after another.
            down: [experts x H, N].
            selection_bias: [experts], added to scores for the choice of experts only (DeepSeek-V3, section 2.1.2).
            expert_scale: [experts], a factor of each expert's weight.
            gate_bias, up_bias, down_bias: [experts x N] or [experts x H]; those of gate and up are both given or none.
            site: whose adapters change the products of each row, before the activation and before the row's weights.
            inner: the first of the N columns of each rank, and the number of all: gate, up and down have some of their
                rows for each expert, and the result has the columns of down's. Empty: this rank has all.
        """
        return x.like(down.shape[0] // routing.num_experts)

    @operation(pool=Pool.WRITE)
    def rope_store(
        self,
        q: Array,
        k: Array | None,
        v: Array | None,
        shape: AttentionShape,
        rope: Vector | None,
        q_norm: Vector | None,
        k_norm: Vector | None,
        eps: float,
        v_norm: Vector | None = None,
        norm_last: bool = False,
        temperature: Vector | None = None,
        site: AdapterSite | None = None,
        axes: tuple[int, ...] = (),
    ) -> Array:
        """Norm q and k per head, rotate them, write k and v to the pool at each row's position -> q [R, heads x dim].

        Args:
            k, v: [R, kv_heads x dim]; None if an earlier layer has stored them.
            v_norm: weight of a norm of each head of v.
            norm_last: norm q and k after the rotation instead of before.
            temperature: [positions], a factor of q by its position.
            site: whose adapters replace the norms of q and k for their rows.
            axes: for each pair, which number of the row's place turns it, if the step has places; none: its position.
        """
        return q.like()

    @operation(pool=Pool.WRITE)
    def latent_store(
        self, q: Array, q_rope: Array, latent: Array, k_rope: Array, shape: AttentionShape, rope: Vector
    ) -> Array:
        """Rotate q_rope and k_rope, write [latent, k_rope] to the pool -> [q, q_rope] of each head.

        The keys of latent attention (DeepSeek-V2, section 2.1); its values are the first `shape.value_dim` numbers of
        a key.

        Args:
            q: [R, heads x value dim], already multiplied by the keys' projection.
            q_rope: [R, heads x rope dim].
            latent: [R, value dim].
            k_rope: [R, rope dim].

        Returns: [R, heads x head dim].
        """
        return q.like(shape.num_heads * shape.head_dim)

    @operation(pool=Pool.READ)
    def attention(self, q: Array, shape: AttentionShape, sinks: Vector | None = None) -> Array:
        """Attend from each row to the stored keys of its sequence up to its position -> [R, heads x value dim].

        Args:
            sinks: [heads], a logit in the softmax of each head that has no value (Xiao et al. 2023, section 3.3).
        """
        return q.like(shape.output_columns)

    @operation()
    def embed_positions(self, table: Table) -> Array:
        """Look up the rows of a table at the positions of the step's rows -> [R, H]."""
        return Value(Extent.ROWS, table.shape[1])

    @operation()
    def rotate(
        self,
        x: Array,
        heads: int,
        rope: tuple[Vector, Vector] | None,
        axes: tuple[int, ...] = (),
        norm: Vector | None = None,
        eps: float = 0.0,
    ) -> Array:
        """Norm each head of x, then rotate it, as `rope_store` does -> [R, heads x dim].

        Args:
            rope: cosines and sines [positions, pairs], or None. The row of a table may be that of a place in an image.
            axes: as of `rope_store`.
            norm: weight of the norm [dim], or None.
        """
        return x.like()

    @operation()
    def attend_all(self, q: Array, k: Array, v: Array, shape: EncoderShape) -> Array:
        """Attend from each row to all rows of its span, without a pool: [R, heads x dim] each -> [R, heads x dim].

        The arithmetic is that of `attention` for the last row of a sequence. Other spans change no bit.
        """
        return q.like()

    @operation()
    def short_conv(
        self,
        x: Array,
        weight: Vector,
        slot: tuple[int, int],
        bias: Vector | None = None,
        activation: Activation | None = None,
    ) -> Array:
        """Convolve each channel over the last rows of its sequence, add the bias, activate: [R, C] -> [R, C].

        The state of a layer has the rows before the next one, oldest first; before the beginning they are 0.

        Args:
            weight: [taps x C], tap after tap; the last one is of the row itself.
            slot: state group of the layer, and its index within the group.
        """
        return x.like()

    @operation()
    def delta_rule(self, x: Array, a: Array, b: Array, decay: Vector, shift: Vector, shape: DeltaShape) -> Array:
        """Advance states by the gated delta rule, and query them: [R, columns] -> [R, heads x value dim].

        With q and k of length 1, q divided by sqrt(key dim), and per value head with the state S [key dim, value dim]:

            S = exp(decay x softplus(a + shift)) S;   S = S + k (sigmoid(b) (v - S^T k))^T;   y = S^T q

        Source: Yang et al., "Gated Delta Networks", ICLR 2025, section 3.1.

        Args:
            x: q and k of each key head, then v of each value head.
            a, b: [R, heads].
            decay, shift: [heads]; decay is negative.
        """
        return x.like(shape.output_columns)

    @operation()
    def gated_norm(
        self, x: Array, gate: Array, weight: Vector, eps: float, heads: int, activation: Activation = SILU
    ) -> Array:
        """Norm each head as `norm` does, then multiply by the activated gate: [R, heads x dim] each."""
        return x.like()

    @operation()
    def gather(self, x: Array) -> Array:
        """Return the step's `logit_rows` of x: [R, H] -> [G, H]."""
        return Value(Extent.LOGITS, x.columns)

    @operation()
    def head(self, x: Array, weight: Matrix, scale: float = 1.0, softcap: float | None = None) -> Array:
        """Compute logits in f32: softcap x tanh(scale x W^T / softcap), or without a softcap scale x W^T.

        [G, H] -> [G, V].
        """
        return x.like(weight.shape[0])

    @operation()
    def scale_logits(self, x: Array, scale: float = 1.0, softcap: float | None = None) -> Array:
        """Scale or cap logits, as `head` does: [G, V] -> [G, V]."""
        return x.like()

    @operation()
    def join(self, x: Array, starts: tuple[int, ...], tiles: int = 1, rounded: bool = False) -> Array:
        """Return the columns of all ranks, in their order: [R, tiles x own columns] -> [R, tiles x starts[-1]].

        Args:
            starts: the first column of each rank, and the number of all. With one rank this copies x.
            tiles: equal runs of columns, each of which is joined.
            rounded: the result is for products that round 32 adjacent inputs. Columns of other ranks are then numbers
                that round to the same codes and scale. All starts are multiples of 32.
        """
        return x.like(tiles * starts[-1])

    @operation()
    def best(self, logits: Array) -> Array:
        """Return the most likely token of each row, the lowest id among equals: [G, V] -> int32 [G, 1].

        A row with a NaN or infinite logit gets -1.
        """
        return Value(logits.extent, 1, np.int32)

    @operation()
    def gather_hidden(self, x: Array) -> Array:
        """Return the step's `hidden_rows` of x: [R, H] -> [P, H]."""
        return Value(Extent.HIDDEN, x.columns)

    @operation()
    def finite(self, x: Array) -> Array:
        """Return whether all numbers of each span are finite: [R, H] -> bool [S, 1]."""
        return Value(Extent.SPANS, 1, np.bool_)
