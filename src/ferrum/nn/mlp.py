"""Gated feed-forward."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.kernels.interface import Array, Operations, Weight
from ferrum.nn.linear import Linear


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """Gated feed-forward: down(silu(gate x) * (up x)), [R, H] -> [R, I] -> [R, H]."""

    gate: Weight
    up: Weight
    down: Linear

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        (y,) = self.down(kernels, kernels.gated_linear(x, self.gate, self.up))
        return y
