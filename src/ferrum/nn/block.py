"""Layers: how parts read the residual stream and add to it; and the feed-forward parts, with and without experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ferrum.kernels.op_attributes import SILU, Activation, Routing
from ferrum.kernels.operations import Array, Operations
from ferrum.nn.linear import Linear, NamedWeight, Norm, Starts, joined

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


# ---- Feed-forward, gated or plain ----


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """Gated feed-forward: down(activation(gate x) * (up x)), [R, H] -> [R, I] -> [R, H].

    Attributes:
        join: where the parts of ranks begin in the inner columns, or None.
    """

    gate: NamedWeight
    up: NamedWeight
    down: Linear
    activation: Activation = SILU
    gate_bias: Array | None = None
    up_bias: Array | None = None
    join: Starts | None = None

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        weights, biases = (self.gate.weight, self.up.weight), (self.gate_bias, self.up_bias)
        hidden = kernels.gated_linear(x, *weights, self.activation, *biases)
        (y,) = self.down(kernels, joined(kernels, hidden, self.join, then=self.down))
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


# ---- Mixture of experts: a router, its experts, and a feed-forward that every row takes ----


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
        inner: see `Operations.experts`.
        join: where the parts of ranks begin in the result, or None.
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
    inner: Starts = ()
    join: Starts | None = None

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        (scores,) = self.router(kernels, x if self.router_norm is None else self.router_norm(kernels, x))
        x = x if self.norm is None else self.norm(kernels, x)
        weights = self.gate.weight, self.up.weight, self.down.weight
        vectors = self.selection_bias, self.expert_scale, *self.biases
        y = kernels.experts(x, scores, self.routing, *weights, self.activation, *vectors, inner=self.inner)
        y = joined(kernels, y, self.join)
        if self.shared is None:
            return y
        gate = None if self.shared_gate is None else self.shared_gate(kernels, x)[0]
        return kernels.add(y, self.shared(kernels, x), gate=gate)


# ---- Per-layer embeddings: what a layer adds for the token alone and for its embedding (Gemma 3n and 4) ----


@dataclass(frozen=True, slots=True)
class LayerInput:
    """A signal of the token, gated by the residual stream.

        signal = (norm(projection(embedding)) + table row) / sqrt(2)
        y      = output(activation(gate x) * signal)

    Attributes:
        embedding, embedding_scale: of the decoder.
        table: [tokens x layers, width], one row of each layer per token.
        table_scale: factor of its rows.
        layers, layer: of the decoder, and which one this is.
        projection: [R, H] -> [R, width].
        norm: of the projection.
        gate: [R, H] -> [R, width], with its activation.
        output: [R, width] -> [R, H].
    """

    embedding: NamedWeight
    embedding_scale: float
    table: NamedWeight
    table_scale: float
    layers: int
    layer: int
    projection: Linear
    norm: Norm
    gate: Linear
    output: Linear

    def __call__(self, kernels: Operations, x: Array) -> Array:
        """Return [R, H] -> [R, H]."""
        (projected,) = self.projection(kernels, kernels.embed(self.embedding.weight, self.embedding_scale))
        token = kernels.embed(self.table.weight, self.table_scale, self.layers, self.layer)
        signal = kernels.add(self.norm(kernels, projected), token, scale=0.5**0.5)
        (gate,) = self.gate(kernels, x)
        (y,) = self.output(kernels, kernels.multiply(gate, signal))
        return y
