"""Linear layers: several weights over one input, with or without biases."""

from __future__ import annotations

from collections.abc import Sequence

from ferrum.kernels.op_attributes import Activation
from ferrum.kernels.operations import Array, Operations, Weight


class Linear:
    """A group of linear layers with a common input: y_i = activation(x W_i^T + b_i), [R, K] -> [R, N_i] each."""

    def __init__(
        self,
        weights: Sequence[Weight],
        biases: Sequence[Array | None] | None = None,
        activation: Activation | None = None,
    ) -> None:
        self.weights = tuple(weights)
        self.biases = tuple(biases) if biases is not None else (None,) * len(self.weights)
        self.activation = activation

    def __call__(self, kernels: Operations, x: Array) -> tuple[Array, ...]:
        """Return all products, in the order of the weights."""
        return kernels.linear(x, self.weights, self.biases, self.activation)
