"""The decoder of all model families: a DecoderSpec with its parameters, for any kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ferrum.core.kv_shape import KvShape
from ferrum.core.state_shape import StateShape
from ferrum.kernels.interface import NetworkOutput, ParameterForms
from ferrum.kernels.operations import Array, Operations, Weight
from ferrum.kernels.vectors import zeros
from ferrum.models.builder import Builder
from ferrum.models.spec import DecoderSpec
from ferrum.models.tensor_names import EMBEDDING, FINAL_NORM, HEAD, LAYERS, ParameterReader, View
from ferrum.nn.block import Layer
from ferrum.nn.linear import NamedNorm, NamedWeight, Norm


@dataclass(frozen=True, slots=True)
class Decoder:
    """A `Network` of embedding, layers, final norm and head. The kernels' step tables hold its inputs.

    Attributes:
        weights: every matrix once, by its name in the checkpoint (a tied head is the embedding).
        norms: the weights of norms that a checkpoint has.
        kv_layers: what layers store per token, by layer group.
        state_layers: what they store per sequence, by state group.
    """

    spec: DecoderSpec
    embedding: NamedWeight
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: NamedWeight
    weights: Mapping[str, Weight]
    kv_layers: tuple[KvShape, ...]
    state_layers: tuple[StateShape, ...] = ()
    norms: tuple[NamedNorm, ...] = ()

    def __call__(self, kernels: Operations, states: list[Array] | None = None) -> NetworkOutput:
        """Run one step; `states` collects the input of each layer and the final states, [R, H] each."""
        spec = self.spec
        residual, delta = kernels.embed(self.embedding.weight, spec.embedding_scale), None  # [R, H]
        for layer in self.layers:
            if states is not None:
                factor = self.final_norm.factor
                states.append(residual if delta is None else kernels.add(residual, delta, factor))
            residual, delta = layer(kernels, residual, delta)
        _, x = self.final_norm.add(kernels, residual, delta)
        if states is not None:
            states.append(x)
        logits = kernels.head(kernels.gather(x), self.head.weight, spec.logit_scale, spec.softcap)  # [G, V]
        return NetworkOutput(logits, kernels.best(logits), kernels.gather_hidden(x), kernels.finite(x))


def build_decoder(
    spec: DecoderSpec, source: ParameterReader, kernels: ParameterForms, max_sequence_length: int
) -> Decoder:
    """Build a decoder with the parameters of a source.

    Args:
        spec: of the model.
        source: of its parameters.
        kernels: converts parameters to the backend's form.
        max_sequence_length: positions of the rope tables.
    """
    return _decoder(spec, _builder(spec, source, kernels, max_sequence_length))


@dataclass(frozen=True, slots=True)
class Inventory:
    """What building a model asks for, without numbers.

    Attributes:
        shapes: of the parameters that a checkpoint must have, by name.
        kv_layers, state_layers: the decoder's.
        num_heads: query heads of the first part that stores per token; 0 without one.
        rope_numbers: frequencies of all rope tables.
        views: where parameters are that are not tensors of their own, by name.
        exact: names of the matrices that stay in float32 (routers).
        norms: what is added to the weights of norms in the Hugging Face layout, by name.
    """

    shapes: Mapping[str, tuple[int, ...]]
    kv_layers: tuple[KvShape, ...]
    state_layers: tuple[StateShape, ...]
    num_heads: int
    rope_numbers: int
    views: Mapping[str, View]
    exact: Collection[str]
    norms: Mapping[str, float]


def inventory(spec: DecoderSpec) -> Inventory:
    """Return the inventory of a model."""
    return list_parameters(lambda source, kernels: _builder(spec, source, kernels, 0), partial(_decoder, spec))


def list_parameters(
    builder: Callable[[ParameterReader, ParameterForms], Builder], build: Callable[[Builder], object]
) -> Inventory:
    """Return what building something asks for.

    Args:
        builder: returns the builder for a source and forms, neither of which has numbers.
        build: builds it.
    """
    source = _Listing()
    make = builder(source, Formless())
    build(make)
    heads = next((specs[0].num_heads for specs in make.stores.values()), 0)
    rope_numbers = sum(len(frequencies) for frequencies, _ in make.ropes)
    norms = {each.name: each.offset for each in make.norm_weights}
    return Inventory(
        source.shapes, make.kv_layers, make.state_layers, heads, rope_numbers, make.views, source.exact, norms
    )


def parameter_shapes(spec: DecoderSpec) -> Mapping[str, tuple[int, ...]]:
    """Return names and shapes of the parameters that a checkpoint must have."""
    return inventory(spec).shapes


def _builder(spec: DecoderSpec, source: ParameterReader, kernels: ParameterForms, positions: int) -> Builder:
    return Builder(source, kernels, spec.hidden_size, spec.norms, positions, spec.renames)


def _decoder(spec: DecoderSpec, make: Builder) -> Decoder:
    matrix = spec.vocab_size, spec.hidden_size
    embedding = make.matrix(EMBEDDING, matrix)
    layers = tuple(layer.build(make.under(f"{LAYERS}.{index}")) for index, layer in enumerate(spec.layers))
    final_norm = make.norm(FINAL_NORM)
    head = embedding if spec.tied_head else make.matrix(HEAD, matrix)
    weights = {name: each.weight for name, each in make.weights.items()}
    stored = make.kv_layers, make.state_layers
    return Decoder(spec, embedding, layers, final_norm, head, weights, *stored, tuple(make.norm_weights))


@dataclass(frozen=True, slots=True)
class _Listing:
    """A parameter source that records the requested shapes, and which matrices are exact."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)

    def matrix(self, name: str, shape: tuple[int, int], *, exact: bool = False) -> Any:
        self.shapes[name] = shape
        if exact:
            self.exact.add(name)

    def release(self, name: str) -> None: ...

    def vector(self, name: str, size: int) -> Any:
        self.shapes[name] = (size,)
        return zeros(size)


class Formless:
    """A backend that converts nothing."""

    def weight(self, weight: Weight) -> Weight:
        return weight

    def vector(self, values: Array) -> Array:
        return values

    def rope_table(self, *_: object) -> Array:
        return None
