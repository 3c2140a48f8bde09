"""`Builder`: from the specs of layers and parts to layers and parts with parameters.

A part's spec asks for everything by name, so the builder knows every parameter, every slot of the KV pool and every
rope table. No other code lists the parts of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from ferrum.core.kv_shape import KvShape
from ferrum.kernels.interface import Array, ParameterForms, Weight
from ferrum.models.tensor_names import ParameterSource
from ferrum.nn.block import Layer, Part
from ferrum.nn.linear import Linear
from ferrum.nn.norm import RmsNorm


class PartSpec(Protocol):
    """A part of a layer as data: a frozen dataclass, for example attention or feed-forward."""

    def build(self, make: Builder) -> Part:
        """Return the part with its parameters, whose names begin with the builder's prefix."""


class LayerSpec(Protocol):
    """A layer as data: a frozen dataclass that holds the specs of its parts."""

    def build(self, make: Builder) -> Layer:
        """Return the layer with its parameters, whose names begin with the builder's prefix."""


class StoringSpec(Protocol):
    """A part that stores keys and values, as data.

    Attributes:
        num_heads: query heads.
    """

    @property
    def num_heads(self) -> int: ...

    def stored(self) -> KvShape:
        """Return what a token stores in the KV pool."""


class Slot(NamedTuple):
    """The place of a layer in the KV pool: its layer group, and its index within the group."""

    group: int
    layer: int


@dataclass(frozen=True, slots=True)
class Builder:
    """A maker of parts. Those of one model share all but the prefix.

    Attributes:
        source, kernels: parameters, and their conversion to the backend's form.
        hidden_size, norm_eps: of the model.
        positions: rows of a rope table.
        prefix: of the names of the part's parameters, without the dot.
        weights: every matrix so far, by name.
        ropes: every rope table so far, by frequencies and scaling.
        stores: the specs that store, by what they store. A shape's position is its layer group.
    """

    source: ParameterSource
    kernels: ParameterForms
    hidden_size: int
    norm_eps: float
    positions: int
    prefix: str = ""
    weights: dict[str, Weight] = field(default_factory=dict)
    ropes: dict[tuple[tuple[float, ...], float], Array] = field(default_factory=dict)
    stores: dict[KvShape, list[StoringSpec]] = field(default_factory=dict)

    @property
    def kv_layers(self) -> tuple[KvShape, ...]:
        """What the layers so far store, by layer group."""
        return tuple(replace(shape, num_layers=len(specs)) for shape, specs in self.stores.items())

    def under(self, name: str) -> Builder:
        """Return the builder of a part of that name."""
        return replace(self, prefix=self._full(name))

    def matrix(self, name: str, shape: tuple[int, int]) -> Weight:
        """Return the matrix [N, K] of that name."""
        name = self._full(name)
        given = self.source.matrix(name, shape)
        self.weights[name] = weight = self.kernels.weight(given)
        if weight is not given:
            del given
            self.source.release(name)
        return weight

    def vector(self, name: str, size: int) -> Array:
        """Return the vector of that name."""
        return self.kernels.vector(self.source.vector(self._full(name), size))

    def norm(self, name: str) -> RmsNorm:
        """Return the norm of the residual stream with that name."""
        return RmsNorm(self.vector(name, self.hidden_size), self.norm_eps)

    def linear(self, names: tuple[str, ...], sizes: tuple[int, ...], inputs: int, *, bias: bool = False) -> Linear:
        """Return the linear layers of these names and numbers of outputs, over one input."""
        parts = list(zip(names, sizes, strict=True))
        weights = [self.matrix(f"{name}.weight", (size, inputs)) for name, size in parts]
        return Linear(weights, [self.vector(f"{name}.bias", size) for name, size in parts] if bias else None)

    def rope(self, frequencies: tuple[float, ...], scaling: float) -> Array:
        """Return the rope table of these frequencies. Parts with equal ones share a table."""
        key = frequencies, scaling
        if key not in self.ropes:
            self.ropes[key] = self.kernels.rope_table(frequencies, scaling, self.positions)
        return self.ropes[key]

    def slot(self, spec: StoringSpec) -> Slot:
        """Return a new slot of the KV pool for what a part stores."""
        shape = spec.stored()
        self.stores.setdefault(shape, []).append(spec)
        return self.slot_before(shape)

    def slot_before(self, shape: KvShape) -> Slot:
        """Return the slot of the last part so far that stores this shape, for a part that reads it again."""
        return Slot(list(self.stores).index(shape), len(self.stores[shape]) - 1)

    def _full(self, name: str) -> str:
        return f"{self.prefix}.{name}" if self.prefix else name
