"""Softmax attention over the KV pool."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.kernels.op_attributes import SIGMOID, AttentionShape
from ferrum.kernels.operations import Array, Operations
from ferrum.nn.linear import Linear
from ferrum.nn.norm import Norm


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

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H], and write the rows' keys and values to the pool."""
        q, *stored = self.inputs(kernels, x)
        gate = stored.pop() if self.gated else None
        k, v = (stored[0], stored[-1]) if stored else (None, None)
        if self.whole_norms is not None:
            q_norm, k_norm = self.whole_norms
            q, k = q_norm(kernels, q), None if k is None else k_norm(kernels, k)
        norms = self.q_norm, self.k_norm
        q = kernels.rope_store(
            q, k, v, self.shape, self.rope, *norms, self.eps, self.v_norm, self.norm_last, self.temperature
        )
        y = kernels.attention(q, self.shape, self.sinks)
        (y,) = self.output(kernels, y if gate is None else kernels.gate(gate, y, SIGMOID))
        return y
