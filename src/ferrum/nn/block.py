"""Layers: how parts read the residual stream and add to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ferrum.kernels.operations import Array, Operations
from ferrum.nn.norm import Norm

Part: TypeAlias = Callable[[Operations, Array], Array]
"""A part of a layer: [R, H] -> [R, H]."""

Layer: TypeAlias = Callable[[Operations, Array, Array | None], tuple[Array, Array | None]]
"""A layer: (residual, delta to add to it, None without one) -> the same pair after it, all [R, H].

The next norm adds the delta, so that a backend can fuse both.
"""


@dataclass(frozen=True, slots=True)
class NormedPart:
    """A part between two norms, either of which may be absent."""

    norm: Norm | None
    part: Part
    post_norm: Norm | None

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        y = self.part(kernels, x if self.norm is None else self.norm(kernels, x))
        return y if self.post_norm is None else self.post_norm(kernels, y)


@dataclass(frozen=True, slots=True)
class Branch:
    """What a layer adds to the residual stream at once: norm -> sum of the parts -> norm, either norm or none.

    Attributes:
        norm, post_norm: before and after the parts, or None.
        parts: attention, feed-forward, or both side by side.
    """

    norm: Norm | None
    parts: tuple[Part, ...]
    post_norm: Norm | None = None

    def __call__(self, kernels: Operations, residual: Array, delta: Array | None) -> tuple[Array, Array]:
        """Return the residual stream with delta, and the branch's own."""
        if self.norm is not None:
            residual, x = self.norm.add(kernels, residual, delta)
        else:
            residual = x = residual if delta is None else kernels.add(residual, delta)
        first, *others = (part(kernels, x) for part in self.parts)
        for other in others:
            first = kernels.add(first, other)
        return residual, first if self.post_norm is None else self.post_norm(kernels, first)


@dataclass(frozen=True, slots=True)
class Block:
    """A layer of branches, one after another.

    residual --+--> branch --(+)--+--> branch --> (added by the next norm)
               +--------------^   +---------------------------^

    Attributes:
        scale: of the residual stream after the layer (Gemma 4's layer scalar).
    """

    branches: tuple[Branch, ...]
    scale: float = 1.0

    def __call__(self, kernels: Operations, residual: Array, delta: Array | None) -> tuple[Array, Array | None]:
        """Run the layer, see `Layer`."""
        for branch in self.branches:
            residual, delta = branch(kernels, residual, delta)
        if self.scale == 1.0 or delta is None:
            return residual, delta
        return kernels.add(residual, delta, scale=self.scale), None
