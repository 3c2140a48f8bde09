"""Layers: how parts read the residual stream and add to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ferrum.kernels.interface import Array, Operations
from ferrum.nn.norm import RmsNorm

Part: TypeAlias = Callable[[Operations, Array], Array]
"""A part of a layer: [R, H] -> [R, H]."""

Layer: TypeAlias = Callable[[Operations, Array, Array | None], tuple[Array, Array]]
"""A layer: (residual, delta to add to it, None before the first layer) -> the same pair after it, all [R, H].

The next norm adds the delta, so that a backend can fuse both.
"""


@dataclass(frozen=True, slots=True)
class PreNormBlock:
    """A residual layer with a norm before each part.

    residual --+--> norm -> attention --(+)--+--> norm -> mlp --> (added by the next norm)
               +------------------------^    +--------------------------^
    """

    attention_norm: RmsNorm
    attention: Part
    mlp_norm: RmsNorm
    mlp: Part

    def __call__(self, kernels: Operations, residual: Array, delta: Array | None) -> tuple[Array, Array]:
        """Run the layer, see `Layer`."""
        if delta is None:
            x = self.attention_norm(kernels, residual)
        else:
            residual, x = self.attention_norm.add(kernels, residual, delta)
        residual, x = self.mlp_norm.add(kernels, residual, self.attention(kernels, x))
        return residual, self.mlp(kernels, x)
