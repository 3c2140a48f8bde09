"""Softmax attention over the KV pool, and multi-head latent attention."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.kernels.op_attributes import SIGMOID, AttentionShape
from ferrum.kernels.operations import Array, Operations
from ferrum.nn.linear import Linear, NamedWeight, Norm, Starts, joined


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention block: project, norm, rotate and store, attend, project.

        x [R, H] -> q [R, heads x dim], k and v [R, kv_heads x dim]  -> pool
                 -> attention over the stored keys [R, heads x dim]  -> [R, H]

    Attributes:
        inputs: projections to q, k and v; to q and k if values are the keys before their norm; to q if an earlier layer
            has stored keys and values. With `gated`, the last one is to a gate of each number of the result.
        output: projection.
        shape: pool slot, heads, scale, window.
        rope: rope table of the backend, or None.
        whole_norms: of all heads of q, and of k, at once.
        q_norm, k_norm, v_norm: norm weights per head dimension, or None.
        norm_last: norm the heads of q and k after the rotation.
        temperature: factors of q by position, or None.
        sinks: a logit of each head, or None.
        eps: of the norms of heads.
        join: where the parts of ranks, which have some of the heads, begin in the result; or None.
        axes: see `Operations.rope_store`.
    """

    inputs: Linear
    output: Linear
    shape: AttentionShape
    rope: Array | None
    whole_norms: tuple[Norm, Norm] | None = None
    q_norm: Array | None = None
    k_norm: Array | None = None
    v_norm: Array | None = None
    norm_last: bool = False
    temperature: Array | None = None
    sinks: Array | None = None
    eps: float = 1e-6
    gated: bool = False
    join: Starts | None = None
    axes: tuple[int, ...] = ()

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H], and write the rows' keys and values to the pool."""
        q, *stored = self.inputs(kernels, x)
        gate = stored.pop() if self.gated else None
        k, v = (stored[0], stored[-1]) if stored else (None, None)
        if self.whole_norms is not None:
            q_norm, k_norm = self.whole_norms
            q, k = q_norm(kernels, q), None if k is None else k_norm(kernels, k)
        norms, last = (self.q_norm, self.k_norm), self.norm_last
        q = kernels.rope_store(
            q, k, v, self.shape, self.rope, *norms, self.eps, self.v_norm, last, self.temperature, axes=self.axes
        )
        y = kernels.attention(q, self.shape, self.sinks)
        y = y if gate is None else kernels.gate(gate, y, SIGMOID)
        (y,) = self.output(kernels, joined(kernels, y, self.join, then=self.output))
        return y


# ---- Multi-head latent attention (DeepSeek-V2, section 2.1) over the KV pool ----


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention whose keys and values are one latent vector, in the absorbed form for every number of rows.

        x [R, H] -> [low [R, q rank] -> norm ->] q [R, heads x nope], q_rope [R, heads x rope]
                 -> latent [R, latent] -> norm, k_rope [R, rope]                   -> pool
        q of a head x its key weight -> q [R, heads x (latent + rope)], rotated
                 -> attention over the stored keys [R, heads x latent], of a head x its value weight
                 -> [R, heads x value] -> [R, H]

    Scores and results are those of keys and values expanded per head, which multiply by the same weights later. With
    one form, a token's bits do not depend on how many rows are computed with it.

    Attributes:
        inputs: projections of x: low or (q, q_rope), then latent and k_rope.
        low_norm, queries: norm of low, and its projections to q and q_rope; None: queries are projections of x.
        latent_norm: norm of the latent vector.
        keys: [heads x latent, nope]: the key projection of each head, transposed.
        values: [heads x value, latent].
        output: projection of all heads.
        shape: pool slot, heads, scale; a value is the first numbers of its key.
        rope: rope table of the backend.
        join: as of `Attention`.
    """

    inputs: Linear
    low_norm: Norm | None
    queries: Linear | None
    latent_norm: Norm
    keys: NamedWeight
    values: NamedWeight
    output: Linear
    shape: AttentionShape
    rope: Array
    join: Starts | None = None

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H], and write the rows' keys to the pool."""
        *first, latent, k_rope = self.inputs(kernels, x)
        if self.low_norm is not None and self.queries is not None:
            first = list(self.queries(kernels, self.low_norm(kernels, first[0])))
        q, q_rope = first
        heads = self.shape.num_heads
        q = kernels.head_linear(q, self.keys.weight, heads)  # [R, heads x latent]
        latent = self.latent_norm(kernels, latent)
        q = kernels.latent_store(q, q_rope, latent, k_rope, self.shape, self.rope)
        attended = kernels.attention(q, self.shape)  # [R, heads x latent]
        values = kernels.head_linear(attended, self.values.weight, heads)
        (y,) = self.output(kernels, joined(kernels, values, self.join, then=self.output))
        return y
