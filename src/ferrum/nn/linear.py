"""Products: several weights over one input, with or without biases."""

from __future__ import annotations

from collections.abc import Sequence

from ferrum.kernels.interface import Array, Operations, Weight


class Linear:
    """y_i = x W_i^T + b_i for a group of weights that share their input: [R, K] -> [R, N_i] each."""

    def __init__(self, weights: Sequence[Weight], biases: Sequence[Array | None] | None = None) -> None:
        self.weights = tuple(weights)
        self.biases = tuple(biases) if biases is not None else (None,) * len(self.weights)

    def __call__(self, kernels: Operations, x: Array) -> tuple[Array, ...]:
        """All products, in the order of the weights."""
        return kernels.linear(x, self.weights, self.biases)
