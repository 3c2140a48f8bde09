"""The decoder of all model families: a DecoderSpec with its parameters, for any kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ferrum.core.kv_shape import KvShape
from ferrum.core.state_shape import StateShape
from ferrum.kernels.interface import NetworkOutput, ParameterForms
from ferrum.kernels.operations import Array, Operations, Weight
from ferrum.kernels.vectors import zeros
from ferrum.models.builder import Builder
from ferrum.models.rank_cuts import ONE_RANK, MatrixPart, Ranks
from ferrum.models.spec import DecoderSpec
from ferrum.models.tensor_names import EMBEDDING, FINAL_NORM, HEAD, LAYERS, ParameterReader, View
from ferrum.nn.block import Layer
from ferrum.nn.linear import NamedNorm, NamedWeight, Norm, Starts, joined


@dataclass(frozen=True, slots=True)
class Decoder:
    """A `Network` of embedding, layers, final norm and head. The kernels' step tables hold its inputs.

    Attributes:
        weights: every matrix once, by its name in the checkpoint (a tied head is the embedding).
        norms: the weights of norms that a checkpoint has.
        kv_layers: what layers store per token, by layer group.
        state_layers: what they store per sequence, by state group.
        join: where the logits of ranks begin, or None.
        parts: the matrices of which this rank has a part, by name.
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
    join: Starts | None = None
    parts: Mapping[str, MatrixPart] = field(default_factory=dict)

    def __call__(self, kernels: Operations, states: list[Array] | None = None) -> NetworkOutput:
        """Run one step; `states` collects the input of each layer and the final states, [R, H] each."""
        spec = self.spec
        residual, delta = kernels.embed(self.embedding.weight, spec.embedding_scale), None  # [R, H]
        for index, layer in enumerate(self.layers):
            if states is not None:
                factor = self.final_norm.factor
                states.append(residual if delta is None else kernels.add(residual, delta, factor))
            residual, delta = layer(kernels, residual, delta)
            if index < spec.deep_features:
                residual = kernels.add_given(residual, index * spec.hidden_size)
        _, x = self.final_norm.add(kernels, residual, delta)
        if states is not None:
            states.append(x)
        logits = kernels.head(kernels.gather(x), self.head.weight, spec.logit_scale, spec.softcap)
        logits = joined(kernels, logits, self.join)  # [G, V]
        return NetworkOutput(logits, kernels.best(logits), kernels.gather_hidden(x), kernels.finite(x))


def build_decoder(
    spec: DecoderSpec,
    source: ParameterReader,
    kernels: ParameterForms,
    max_sequence_length: int,
    ranks: Ranks = ONE_RANK,
) -> Decoder:
    """Build a decoder with the parameters of a source.

    Args:
        spec: of the model.
        source: of its parameters.
        kernels: converts parameters to the backend's form.
        max_sequence_length: positions of the rope tables.
        ranks: which part of each matrix the decoder has.

    Raises:
        Unsupported: the model cannot be cut for that number of ranks.
    """
    return _decoder(spec, _builder(spec, source, kernels, max_sequence_length, ranks))


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
        wholes: the shapes of the parameters of which this rank has a part, by name.
        kept: the KV heads of each rank, by layer group; empty: each rank keeps all.
        ranks: which rank asks.
        own_states: what this rank stores per sequence, by state group.
    """

    shapes: Mapping[str, tuple[int, ...]]
    kv_layers: tuple[KvShape, ...]
    state_layers: tuple[StateShape, ...]
    num_heads: int
    rope_numbers: int
    views: Mapping[str, View]
    exact: Collection[str]
    norms: Mapping[str, float]
    wholes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    kept: tuple[tuple[tuple[int, int], ...], ...] = ()
    ranks: Ranks = ONE_RANK
    own_states: tuple[StateShape, ...] = ()

    @property
    def own_layers(self) -> tuple[KvShape, ...]:
        """What the layers of this rank store per token, by layer group."""
        pairs = zip(self.kv_layers, self.kept or ((),) * len(self.kv_layers), strict=True)
        return tuple(
            kv if not kept else replace(kv, num_heads=kept[self.ranks.rank][1] - kept[self.ranks.rank][0])
            for kv, kept in pairs
        )

    @property
    def widest(self) -> int:
        """The most columns that ranks exchange in one row."""
        return max(size for shape in self.wholes.values() for size in shape)


def inventory(spec: DecoderSpec, ranks: Ranks = ONE_RANK) -> Inventory:
    """Return the inventory of a model, or of one rank of it. Raises Unsupported if it cannot be cut."""
    return list_parameters(
        lambda source, kernels: _builder(spec, source, kernels, 0, ranks), partial(_decoder, spec), ranks
    )


def list_parameters(
    builder: Callable[[ParameterReader, ParameterForms], Builder],
    build: Callable[[Builder], object],
    ranks: Ranks = ONE_RANK,
) -> Inventory:
    """Return what building something asks for.

    Args:
        builder: returns the builder for a source and forms, neither of which has numbers.
        build: builds it.
        ranks: the rank that it is for.
    """
    source = _Listing()
    make = builder(source, Formless())
    build(make)
    heads = next((specs[0].num_heads for specs in make.stores.values()), 0)
    rope_numbers = sum(len(frequencies) for frequencies, _ in make.ropes)
    norms = {each.name: each.offset for each in make.norm_weights}
    return Inventory(
        shapes=source.shapes,
        kv_layers=make.kv_layers,
        state_layers=make.state_layers,
        num_heads=heads,
        rope_numbers=rope_numbers,
        views=make.views,
        exact=source.exact,
        norms=norms,
        wholes=make.wholes,
        kept=tuple(make.kept[shape] for shape in make.stores),
        ranks=ranks,
        own_states=tuple(replace(make.own_states[shape], num_layers=count) for shape, count in make.states.items()),
    )


def parameter_shapes(spec: DecoderSpec) -> Mapping[str, tuple[int, ...]]:
    """Return names and shapes of the parameters that a checkpoint must have."""
    return inventory(spec).shapes


def _builder(
    spec: DecoderSpec, source: ParameterReader, kernels: ParameterForms, positions: int, ranks: Ranks
) -> Builder:
    return Builder(source, kernels, spec.hidden_size, spec.norms, positions, spec.renames, ranks=ranks)


def _decoder(spec: DecoderSpec, make: Builder) -> Decoder:
    embedding = make.matrix(EMBEDDING, (spec.vocab_size, spec.hidden_size))
    layers = tuple(layer.build(make.under(f"{LAYERS}.{index}")) for index, layer in enumerate(spec.layers))
    final_norm = make.norm(FINAL_NORM)
    join = make.cut(HEAD, spec.vocab_size)
    head = _head(spec, make, embedding, None if join is None else make.ranks.own(join))
    weights = {name: each.weight for name, each in make.weights.items()}
    stored = make.kv_layers, make.state_layers
    norms = tuple(make.norm_weights)
    return Decoder(spec, embedding, layers, final_norm, head, weights, *stored, norms, join, make.parts)


def _head(spec: DecoderSpec, make: Builder, embedding: NamedWeight, part: slice | None) -> NamedWeight:
    """Return the head, or the part of a rank. Every rank has the whole embedding, whose rows are looked up."""
    if not spec.tied_head:
        return make.matrix(HEAD, (spec.vocab_size, spec.hidden_size), part=part)
    if part is None:
        return embedding
    make.parts[HEAD] = MatrixPart((spec.vocab_size, spec.hidden_size), part)
    return NamedWeight(embedding.name, embedding.weight.part(part.start, part.stop))


@dataclass(frozen=True, slots=True)
class _Listing:
    """A parameter source that records the requested shapes, and which matrices are exact."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    exact: set[str] = field(default_factory=set)

    def matrix(self, name: str, shape: tuple[int, int], *, exact: bool = False) -> Any:
        self.shapes[name] = shape
        if exact:
            self.exact.add(name)
        return self

    def part(self, begin: int, end: int) -> Any:  # noqa: ARG002 - it stands for a matrix without numbers
        return self

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
