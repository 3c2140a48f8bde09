"""Parts of encoders: attention among all rows, and what the rows of patches begin and end with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ferrum.kernels.op_attributes import Activation, EncoderShape
from ferrum.kernels.operations import Array, Operations
from ferrum.nn.linear import Linear


@dataclass(frozen=True, slots=True)
class Clipped:
    """Linear layers over one input, each with bounds of its inputs and of its results: activations `clip`.

    Attributes:
        inputs, outputs: bounds of each layer.
    """

    linear: Linear
    inputs: tuple[Activation, ...]
    outputs: tuple[Activation, ...]

    def __call__(self, kernels: Operations, x: Array) -> tuple[Array, ...]:
        """Return all products, in the order of the weights. Layers with equal bounds share their inputs."""
        if len(set(self.inputs)) == 1:
            ys = self.linear(kernels, kernels.activate(x, self.inputs[0]))
        else:
            pairs = zip(self.linear.weights, self.inputs, strict=True)
            ys = tuple(kernels.linear(kernels.activate(x, clip), (each.weight,), (None,))[0] for each, clip in pairs)
        return tuple(kernels.activate(y, clip) for y, clip in zip(ys, self.outputs, strict=True))


@dataclass(frozen=True, slots=True)
class ClippedMlp:
    """Gated feed-forward with bounds: down(activation(gate x) * (up x)), [R, H] -> [R, H].

    Attributes:
        inputs: gate and up.
    """

    inputs: Clipped
    down: Clipped
    activation: Activation

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        gate, up = self.inputs(kernels, x)
        (y,) = self.down(kernels, kernels.gate(gate, up, self.activation))
        return y


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Weights of norms of each head of queries, keys and values, and their epsilon."""

    q: Array
    k: Array
    v: Array
    eps: float


@dataclass(frozen=True, slots=True)
class EncoderAttention:
    """Attention among all rows of a span, [R, H] -> [R, H].

    Attributes:
        qkv, output: projections.
        rope: cosines and sines by position, or None.
        axes: see `Operations.rotate`.
        norms: before the rotation, or None.
    """

    qkv: Linear | Clipped
    output: Linear | Clipped
    shape: EncoderShape
    rope: Any | None = None
    axes: tuple[int, ...] = ()
    norms: HeadNorms | None = None

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        q, k, v = self.qkv(kernels, x)
        heads, norms = self.shape.num_heads, self.norms
        if norms is not None:
            q = kernels.rotate(q, heads, self.rope, self.axes, norms.q, norms.eps)
            k = kernels.rotate(k, heads, self.rope, self.axes, norms.k, norms.eps)
            v = kernels.rotate(v, heads, None, norm=norms.v, eps=norms.eps)
        elif self.rope is not None:
            q, k = (kernels.rotate(each, heads, self.rope, self.axes) for each in (q, k))
        (y,) = self.output(kernels, kernels.attend_all(q, k, v, self.shape))
        return y
