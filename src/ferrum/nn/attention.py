"""Softmax attention over the KV pool."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.kernels.interface import Array, AttentionShape, Operations
from ferrum.nn.linear import Linear


@dataclass(frozen=True, slots=True)
class Attention:
    """Project, rotate and store, attend, project.

        x [R, H] -> q [R, heads x dim], k and v [R, kv_heads x dim]  -> pool
                 -> attention over the stored keys [R, heads x dim]  -> [R, H]

    Attributes:
        qkv, output: the projections.
        shape: where in the pool, heads, scale, window.
        rope: the backend's rope table, or None.
        q_norm, k_norm: norm weights per head dimension, or None; `eps` is theirs.
    """

    qkv: Linear
    output: Linear
    shape: AttentionShape
    rope: Array | None
    q_norm: Array | None
    k_norm: Array | None
    eps: float

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """[R, H] -> [R, H]; writes the rows' keys and values to the pool."""
        q, k, v = self.qkv(kernels, x)
        q = kernels.rope_store(q, k, v, self.shape, self.rope, self.q_norm, self.k_norm, self.eps)
        (y,) = self.output(kernels, kernels.attention(q, self.shape))
        return y
