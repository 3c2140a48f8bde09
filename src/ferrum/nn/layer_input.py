"""Per-layer embeddings: what a layer adds for the token alone and for its embedding (Gemma 3n and 4)."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.kernels.operations import Array, Operations
from ferrum.nn.linear import Linear
from ferrum.nn.named_weight import NamedWeight
from ferrum.nn.norm import Norm


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
