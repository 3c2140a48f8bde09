"""Recurrent parts of hybrid models, which keep a state per sequence in place of keys and values per token."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.kernels.op_attributes import SILU, DeltaShape
from ferrum.kernels.operations import Array, Operations
from ferrum.nn.linear import Linear, Starts, joined


@dataclass(frozen=True, slots=True)
class Convolution:
    """A causal convolution over the last rows of each channel.

    Attributes:
        weight: [taps x C], tap after tap.
        slot: state group of the layer, and its index within the group.
        bias: [C], or None.
    """

    weight: Array
    slot: tuple[int, int]
    bias: Array | None = None


@dataclass(frozen=True, slots=True)
class ShortConv:
    """Gated short convolution (LFM2): output(c * convolution(b * x)), where b, c and x are projections.

    Attributes:
        inputs: projections to b, c and x, [R, H] each.
        join: where the channels of ranks begin, or None.
    """

    inputs: Linear
    convolution: Convolution
    output: Linear
    join: Starts | None = None

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H], and advance the states of the rows' sequences."""
        b, c, x = self.inputs(kernels, x)
        conv = self.convolution
        y = kernels.short_conv(kernels.multiply(b, x), conv.weight, conv.slot, conv.bias)
        (y,) = self.output(kernels, joined(kernels, kernels.multiply(c, y), self.join, then=self.output))
        return y


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated DeltaNet (Yang et al., ICLR 2025): project, convolve, advance and query states, norm and gate, project.

        x [R, H] -> q, k and v [R, columns], z [R, heads x value dim], b and a [R, heads]
                 -> states -> [R, heads x value dim] -> [R, H]

    Attributes:
        inputs: projections to q, k and v together, to z, b and a.
        decay, shift: [heads], see `Operations.delta_rule`.
        norm: weight of the norm of each head [value dim].
        join: where the values of ranks, which have some of the heads, begin in each tile of values; or None.
        tiles: runs of value heads that have one of each key head; 1: those of a key head are adjacent.
    """

    inputs: Linear
    convolution: Convolution
    decay: Array
    shift: Array
    shape: DeltaShape
    norm: Array
    output: Linear
    eps: float
    join: Starts | None = None
    tiles: int = 1

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H], and advance the states of the rows' sequences."""
        qkv, z, b, a = self.inputs(kernels, x)
        conv = self.convolution
        qkv = kernels.short_conv(qkv, conv.weight, conv.slot, conv.bias, SILU)
        y = kernels.delta_rule(qkv, a, b, self.decay, self.shift, self.shape)
        y = kernels.gated_norm(y, z, self.norm, self.eps, self.shape.num_heads)
        (y,) = self.output(kernels, joined(kernels, y, self.join, self.tiles, self.output))
        return y
