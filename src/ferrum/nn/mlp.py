"""Feed-forward, gated or plain."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.kernels.op_attributes import SILU, Activation
from ferrum.kernels.operations import Array, Operations
from ferrum.nn.linear import Linear
from ferrum.nn.named_weight import NamedWeight


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """Gated feed-forward: down(activation(gate x) * (up x)), [R, H] -> [R, I] -> [R, H]."""

    gate: NamedWeight
    up: NamedWeight
    down: Linear
    activation: Activation = SILU
    gate_bias: Array | None = None
    up_bias: Array | None = None

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        weights, biases = (self.gate.weight, self.up.weight), (self.gate_bias, self.up_bias)
        hidden = kernels.gated_linear(x, *weights, self.activation, *biases)
        (y,) = self.down(kernels, hidden)
        return y


@dataclass(frozen=True, slots=True)
class PlainMlp:
    """Feed-forward: down(activation(up x)), [R, H] -> [R, I] -> [R, H]."""

    up: Linear
    down: Linear

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        (hidden,) = self.up(kernels, x)
        (y,) = self.down(kernels, hidden)
        return y
