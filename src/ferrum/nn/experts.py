"""Mixture of experts: a router, its experts, and a feed-forward that every row takes."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.kernels.op_attributes import SILU, Activation, Routing
from ferrum.kernels.operations import Array, Operations
from ferrum.nn.block import Part
from ferrum.nn.linear import Linear
from ferrum.nn.named_weight import NamedWeight
from ferrum.nn.norm import Norm


@dataclass(frozen=True, slots=True)
class Experts:
    """A feed-forward of experts (Shazeer et al. 2017), and perhaps shared ones (DeepSeekMoE, Dai et al. 2024).

    Attributes:
        router: [R, H] -> scores [R, experts].
        gate, up, down, biases, activation: see `Operations.experts`.
        selection_bias, expert_scale: [experts], or None.
        shared: a feed-forward that every row takes, or None.
        shared_gate: [R, H] -> [R, 1], whose sigmoid is a factor of `shared`; None: no factor.
        norm, router_norm: of the inputs of the experts and of the router, or None.
    """

    router: Linear
    routing: Routing
    gate: NamedWeight
    up: NamedWeight
    down: NamedWeight
    activation: Activation = SILU
    selection_bias: Array | None = None
    expert_scale: Array | None = None
    biases: tuple[Array | None, Array | None, Array | None] = (None, None, None)
    shared: Part | None = None
    shared_gate: Linear | None = None
    norm: Norm | None = None
    router_norm: Norm | None = None

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        (scores,) = self.router(kernels, x if self.router_norm is None else self.router_norm(kernels, x))
        x = x if self.norm is None else self.norm(kernels, x)
        weights = self.gate.weight, self.up.weight, self.down.weight
        vectors = self.selection_bias, self.expert_scale, *self.biases
        y = kernels.experts(x, scores, self.routing, *weights, self.activation, *vectors)
        if self.shared is None:
            return y
        gate = None if self.shared_gate is None else self.shared_gate(kernels, x)[0]
        return kernels.add(y, self.shared(kernels, x), gate=gate)
