"""Linear layers: several weights over one input, with or without biases."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.kernels.op_attributes import Activation
from ferrum.kernels.operations import Array, Operations
from ferrum.nn.named_weight import NamedWeight


@dataclass(frozen=True, slots=True)
class Linear:
    """A group of linear layers with a common input: y_i = activation(x W_i^T + b_i), [R, K] -> [R, N_i] each.

    Attributes:
        biases: one for each weight, or none at all.
    """

    weights: tuple[NamedWeight, ...]
    biases: tuple[Array | None, ...] = ()
    activation: Activation | None = None

    def __call__(self, kernels: Operations, x: Array) -> tuple[Array, ...]:
        """Return all products, in the order of the weights."""
        weights = tuple(each.weight for each in self.weights)
        return kernels.linear(x, weights, self.biases or (None,) * len(weights), self.activation)
