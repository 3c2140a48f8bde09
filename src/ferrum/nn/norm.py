"""RMSNorm and LayerNorm."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.kernels.operations import Array, Operations


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm: x / sqrt(mean(x^2) + eps) * weight + bias (Zhang and Sennrich 2019).

    Attributes:
        bias: None: nothing is added.
        centred: the mean of x is subtracted before: LayerNorm (Ba et al. 2016).
        factor: of what a part adds to the residual stream before this norm.
    """

    weight: Array
    eps: float
    bias: Array | None = None
    centred: bool = False
    factor: float = 1.0

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        return kernels.norm(x, self.weight, self.eps, self.bias, self.centred)

    def add(self, kernels: Operations, residual: Array, delta: Array | None) -> tuple[Array, Array]:
        """Return residual + factor x delta and its norm. A backend can fuse both into one pass over memory."""
        if delta is None:
            return residual, self(kernels, residual)
        return kernels.add_norm(residual, delta, self.weight, self.eps, self.bias, self.centred, self.factor)
