"""RMSNorm."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.kernels.interface import Array, Operations


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019)."""

    weight: Array
    eps: float

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        return kernels.norm(x, self.weight, self.eps)

    def add(self, kernels: Operations, residual: Array, delta: Array) -> tuple[Array, Array]:
        """Return residual + delta and its norm. A backend can fuse both into one pass over memory."""
        return kernels.add_norm(residual, delta, self.weight, self.eps)
