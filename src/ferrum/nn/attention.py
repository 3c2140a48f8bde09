"""Softmax attention over the KV pool."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.kernels.interface import Array, AttentionShape, Operations
from ferrum.nn.linear import Linear


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention block: project, rotate and store, attend, project.

        x [R, H] -> q [R, heads x dim], k and v [R, kv_heads x dim]  -> pool
                 -> attention over the stored keys [R, heads x dim]  -> [R, H]

    Attributes:
        qkv, output: projections.
        shape: pool slot, heads, scale, window.
        rope: rope table of the backend, or None.
        q_norm, k_norm: norm weights per head dimension, or None.
        eps: of these norms.
    """

    qkv: Linear
    output: Linear
    shape: AttentionShape
    rope: Array | None
    q_norm: Array | None
    k_norm: Array | None
    eps: float

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H], and write the rows' keys and values to the pool."""
        q, k, v = self.qkv(kernels, x)
        q = kernels.rope_store(q, k, v, self.shape, self.rope, self.q_norm, self.k_norm, self.eps)
        (y,) = self.output(kernels, kernels.attention(q, self.shape))
        return y
