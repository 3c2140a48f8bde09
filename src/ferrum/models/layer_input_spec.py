"""Specification of per-layer embeddings as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ferrum.kernels.op_attributes import Activation
from ferrum.models.builder import Builder, Place
from ferrum.models.tensor_names import EMBEDDING
from ferrum.models.tensor_views import View
from ferrum.nn.layer_input import LayerInput
from ferrum.nn.norm import Norm

_TABLE: Final = "model.embed_tokens_per_layer.weight"


@dataclass(frozen=True, slots=True)
class LayerInputSpec:
    """What a layer adds for the token alone and for its embedding.

    Attributes:
        layers, layer: of the decoder, and which one this is.
        width: numbers of a token in a layer.
        vocab_size: tokens of the table.
        embedding_scale: of the decoder.
    """

    layers: int
    layer: int
    width: int
    vocab_size: int
    embedding_scale: float
    activation: Activation

    def build(self, make: Builder) -> LayerInput:
        """Return the part with its parameters."""
        hidden, width = make.hidden_size, self.width
        rows = slice(self.layer * width, (self.layer + 1) * width)
        places = {"per_layer_model_projection": Place("model.per_layer_model_projection", rows)}
        # The projection has a factor hidden^-0.5, which changes nothing in a norm but its epsilon.
        weight = make.norm_weight("model.per_layer_projection_norm.weight", width)
        return LayerInput(
            embedding=make.weights[EMBEDDING],
            embedding_scale=self.embedding_scale,
            table=make.shared(_TABLE, (self.vocab_size * self.layers, width), View((_TABLE,), width=width)),
            table_scale=width**0.5,
            layers=self.layers,
            layer=self.layer,
            projection=make.linear(("per_layer_model_projection",), (width,), hidden, places=places),
            norm=Norm(weight, make.norms.eps * hidden),
            gate=make.linear(("per_layer_input_gate",), (width,), hidden, activation=self.activation),
            output=make.linear(("per_layer_projection",), (hidden,), width),
        )
