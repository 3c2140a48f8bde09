"""`Builder`: from the specs of layers and parts to layers and parts with parameters.

A part's spec asks for everything by name, so the builder knows every parameter, every slot of the KV pool and every
rope table. No other code lists the parts of a layer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from ferrum.core.errors import CheckpointError
from ferrum.core.kv_shape import KvShape
from ferrum.core.state_shape import StateShape
from ferrum.kernels.group_weights import PANEL
from ferrum.kernels.interface import ParameterForms
from ferrum.kernels.op_attributes import Activation
from ferrum.kernels.operations import F32, Array, Weight
from ferrum.kernels.reference.reference_math import exp
from ferrum.kernels.vectors import ones, temperatures
from ferrum.models.rank_cuts import ONE_RANK, MatrixPart, Ranks
from ferrum.models.tensor_names import ParameterReader, Rows, Runs, View
from ferrum.nn.block import Layer, Part
from ferrum.nn.linear import Linear, NamedNorm, NamedWeight, Norm, Starts
from ferrum.quant.block_weight import BlockWeight


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


class StatefulSpec(Protocol):
    """A part that stores a state, as data."""

    def stored(self) -> StateShape:
        """Return what a sequence stores, whatever its length."""


class Slot(NamedTuple):
    """The place of a layer in the KV pool, or among the states: its group, and its index within the group."""

    group: int
    layer: int


class Place(NamedTuple):
    """Where a checkpoint has a linear layer: rows of `source`.weight and `source`.bias, and columns of the weight."""

    source: str
    rows: Rows | None = None
    columns: Rows | None = None


@dataclass(frozen=True, slots=True)
class NormSpec:
    """The norms of a model.

    Attributes:
        eps: of every norm.
        centred, bias: see `nn.linear.Norm`.
        offset: added to the stored weights (1 where a checkpoint stores weights minus 1).
        layout_offset: the same of checkpoints in the Hugging Face layout, which adapters have, too.
        factor: of what each part adds to the residual stream.
    """

    eps: float
    centred: bool = False
    bias: bool = False
    offset: float = 0.0
    layout_offset: float = 0.0
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Builder:
    """A maker of parts. Those of one model share all but the prefix.

    Attributes:
        source, kernels: parameters, and their conversion to the backend's form.
        hidden_size, norms: of the model.
        positions: rows of a rope table.
        renames: patterns of full names, and what a checkpoint calls the tensors instead.
        prefix: of the names of the part's parameters, without the dot.
        weights: every matrix so far, by name.
        norm_weights: those of every norm so far that a checkpoint has.
        ropes: every rope table so far, by frequencies and scaling.
        grid_ropes: every pair of tables of places of an image so far.
        temperatures: every table of factors by position so far, by its scale, period and shift.
        stores: the specs that store per token, by what they store. A shape's position is its layer group.
        states: how many parts store each state so far. A shape's position is its state group.
        views: where the numbers of parameters are, for those that are not tensors of their own in every checkpoint.
        ranks: which part of each matrix this rank has.
        wholes: the shape of every parameter that is cut so far, by name.
        parts: the matrices of which this rank has a part so far, by name.
        kept: the KV heads of each rank that stores a part of them, by what all ranks store.
        own_states: what this rank stores of each state, by what all ranks store.
    """

    source: ParameterReader
    kernels: ParameterForms
    hidden_size: int
    norms: NormSpec
    positions: int
    renames: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    weights: dict[str, NamedWeight] = field(default_factory=dict)
    norm_weights: list[NamedNorm] = field(default_factory=list)
    ropes: dict[tuple[tuple[float, ...], float], Array] = field(default_factory=dict)
    grid_ropes: dict[Hashable, tuple[Array, Array]] = field(default_factory=dict)
    temperatures: dict[tuple[float, int, int], Array] = field(default_factory=dict)
    stores: dict[KvShape, list[StoringSpec]] = field(default_factory=dict)
    states: Counter[StateShape] = field(default_factory=Counter)
    views: dict[str, View] = field(default_factory=dict)
    ranks: Ranks = ONE_RANK
    wholes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parts: dict[str, MatrixPart] = field(default_factory=dict)
    kept: dict[KvShape, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    own_states: dict[StateShape, StateShape] = field(default_factory=dict)

    @property
    def kv_layers(self) -> tuple[KvShape, ...]:
        """What the layers so far store per token, by layer group."""
        return tuple(replace(shape, num_layers=len(specs)) for shape, specs in self.stores.items())

    @property
    def state_layers(self) -> tuple[StateShape, ...]:
        """What the layers so far store per sequence, by state group."""
        return tuple(replace(shape, num_layers=count) for shape, count in self.states.items())

    def under(self, name: str) -> Builder:
        """Return the builder of a part of that name; without a name, of the same."""
        return replace(self, prefix=self._full(name)) if name else self

    def matrix(
        self,
        name: str,
        shape: tuple[int, int],
        view: View | None = None,
        *,
        exact: bool = False,
        part: Rows | None = None,
    ) -> NamedWeight:
        """Return the matrix [N, K] of that name, which may be a view of tensors; if `exact`, in float32.

        Args:
            part: the rows that this rank has, whole panels; None: all.
        """
        if part is not None:
            self._check_part(name, part, shape[0])
            view, shape = self._cut(name, shape, view, part), (_count(part), shape[1])
        name = self._placed(name, view)
        given = self.source.matrix(name, shape, exact=exact)
        weight = self.kernels.weight(given)
        self.weights[name] = named = NamedWeight(name, weight, _rounds(given))
        if weight is not given:
            del given
            self.source.release(name)
        return named

    def table(self, name: str, shape: tuple[int, int], view: View | None = None) -> Weight:
        """Return the matrix of that name as the source has it, in float32: no operation uses it."""
        return self.source.matrix(self._placed(name, view), shape, exact=True)

    def shared(self, name: str, shape: tuple[int, int], view: View) -> NamedWeight:
        """Return a matrix of that whole name, which parts of several layers use."""
        return self.weights[name] if name in self.weights else self.matrix(name, shape, view)

    def vector(
        self,
        name: str,
        size: int,
        view: View | None = None,
        *,
        offset: float = 0.0,
        factor: float = 1.0,
        part: Rows | None = None,
    ) -> Array:
        """Return the vector of that name, which may be a view of tensors, times a factor plus an offset.

        Args:
            part: the numbers that this rank has; None: all. Vectors are small, and read whole.
        """
        values = self.source.vector(self._placed(name, view), size)
        values = values if part is None else values[_numbers(part)]
        if (offset, factor) != (0.0, 1.0):
            values = values * factor + offset
        return self.kernels.vector(values)

    def decay(self, name: str, size: int, view: View | None = None, part: Rows | None = None) -> Array:
        """Return the vector -exp(x) of the vector of that name (`A_log` of recurrent layers), or a rank's part."""
        values = -exp(self.source.vector(self._placed(name, view), size))
        return self.kernels.vector(values if part is None else values[_numbers(part)])

    def number(self, name: str, view: View | None = None) -> float:
        """Return the only number of that name."""
        return float(self.source.vector(self._placed(name, view), 1)[0])

    def ones(self, size: int) -> Array:
        """Return a vector of ones, for a norm without a weight."""
        return self.kernels.vector(ones(size))

    def norm_weight(self, name: str, size: int) -> Array:
        """Return the weight of a norm by the name of the tensor."""
        weight = self.vector(name, size, offset=self.norms.offset)
        self.norm_weights.append(NamedNorm(self._full(name), weight, self.norms.layout_offset))
        return weight

    def norm(self, name: str, size: int | None = None) -> Norm:
        """Return the norm of that name, of the residual stream or of `size` numbers."""
        spec, count = self.norms, size or self.hidden_size
        weight = self.norm_weight(f"{name}.weight", count)
        bias = self.vector(f"{name}.bias", count) if spec.bias else None
        return Norm(weight, spec.eps, bias, spec.centred, spec.factor)

    def linear(
        self,
        names: tuple[str, ...],
        sizes: tuple[int, ...],
        inputs: int,
        *,
        bias: bool = False,
        places: Mapping[str, Place] | None = None,
        activation: Activation | None = None,
        exact: bool = False,
        whole: bool = False,
        parts: tuple[Rows | None, ...] | None = None,
    ) -> Linear:
        """Return the linear layers of these names and numbers of outputs, over one input.

        Each rank has a part of the outputs, and the layer joins the parts.

        Args:
            names, sizes: of the layers, of all ranks together.
            inputs: numbers of the input.
            bias: whether they have biases.
            places: where their rows are, for those that are not tensors of their own.
            activation: of all outputs.
            exact: keep the weights in float32.
            whole: every rank has all outputs.
            parts: the outputs of this rank, which stay apart; None joins them.
        """
        cuts = [None if whole or parts is not None else self.cut(n, s) for n, s in zip(names, sizes, strict=True)]
        own = parts or tuple(None if cut is None else self.ranks.own(cut) for cut in cuts)

        def view(name: str, kind: str) -> View | None:
            place = (places or {}).get(name)
            if place is None:
                return None
            return View((f"{place.source}.{kind}",), place.rows, place.columns if kind == "weight" else None)

        layers = list(zip(names, sizes, own, strict=True))
        weights = tuple(
            self.matrix(f"{n}.weight", (size, inputs), view(n, "weight"), exact=exact, part=p) for n, size, p in layers
        )
        biases = tuple(self.vector(f"{n}.bias", size, view(n, "bias"), part=p) for n, size, p in layers) if bias else ()
        return Linear(weights, biases, activation, tuple(cuts) if any(cuts) else ())

    def cut(self, name: str, outputs: int) -> Starts | None:
        """Return how ranks share the outputs of a matrix; None with one rank. Raises Unsupported."""
        return None if self.ranks.count == 1 else self.ranks.panels(self._full(name), outputs)

    def rope(self, frequencies: tuple[float, ...], scaling: float) -> Array:
        """Return the rope table of these frequencies. Parts with equal ones share a table."""
        key = frequencies, scaling
        if key not in self.ropes:
            self.ropes[key] = self.kernels.rope_table(frequencies, scaling, self.positions)
        return self.ropes[key]

    def grid_rope(self, key: Hashable, tables: Callable[[], tuple[F32, F32]]) -> tuple[Array, Array]:
        """Return cosines and sines of places of an image. Parts with equal keys share them."""
        if key not in self.grid_ropes:
            cosines, sines = tables()
            self.grid_ropes[key] = self.kernels.vector(cosines), self.kernels.vector(sines)
        return self.grid_ropes[key]

    def temperature(self, scale: float, period: int, shift: int) -> Array:
        """Return the factors of `kernels.vectors.temperatures`. Parts with equal ones share a table."""
        key = scale, period, shift
        if key not in self.temperatures:
            self.temperatures[key] = self.kernels.vector(temperatures(*key, self.positions))
        return self.temperatures[key]

    def slot(self, spec: StoringSpec, kept: tuple[tuple[int, int], ...] = ()) -> Slot:
        """Return a new slot of the KV pool for what a part stores.

        Args:
            kept: the KV heads of each rank, from the first to before the last; none: each rank keeps all.
        """
        shape = spec.stored()
        self.stores.setdefault(shape, []).append(spec)
        if self.kept.setdefault(shape, kept) != kept:
            raise self.ranks.refusal(f"{self.prefix} keeps other KV heads than a layer before it")
        return self.slot_before(shape)

    def slot_before(self, shape: KvShape) -> Slot:
        """Return the slot of the last part so far that stores this shape, for a part that reads it again.

        Raises CheckpointError if there is none.
        """
        if shape not in self.stores:
            raise CheckpointError("config.json: num_kv_shared_layers: a layer reads what no layer before it stores")
        return Slot(list(self.stores).index(shape), len(self.stores[shape]) - 1)

    def state_slot(self, spec: StatefulSpec, own: StateShape | None = None) -> Slot:
        """Return a new place for the state of a part.

        Args:
            own: what this rank stores of it; None: all.
        """
        shape = spec.stored()
        self.states[shape] += 1
        self.own_states[shape] = own or shape
        return Slot(list(self.states).index(shape), self.states[shape] - 1)

    def _check_part(self, name: str, part: Rows, outputs: int) -> None:
        """Refuse a part of a matrix that does not consist of whole panels. Raises Unsupported."""
        runs = part if isinstance(part, tuple) else (part,)
        for run in runs:
            rows = slice(run.first, run.first + run.count) if isinstance(run, Runs) else run
            if outputs >= PANEL * max(4, self.ranks.count):  # a matrix of few outputs is no loss
                self.ranks.check(self._full(name), rows, outputs)

    def _cut(self, name: str, shape: tuple[int, int], view: View | None, part: Rows) -> View:
        """Return the view of a part of a parameter, and note the shape of the whole."""
        full = self._full(name)
        self.wholes[full] = shape
        self.parts[full] = MatrixPart(shape, part)
        return _parted(View((name,)) if view is None else view, part)

    def _placed(self, name: str, view: View | None) -> str:
        """Return the full name of a parameter, and note its view."""
        full = self._full(name)
        found = self._found(View((name,)) if view is None else view)
        if view is not None or found.sources != (full,):
            self.views[full] = found
        return full

    def _found(self, view: View) -> View:
        """Return a view with the names that a checkpoint has."""
        sources = tuple(self._renamed(self._full(name)) for name in view.sources)
        return replace(view, sources=sources, otherwise=view.otherwise and self._found(view.otherwise))

    def _renamed(self, name: str) -> str:
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name

    def _full(self, name: str) -> str:
        """Return a name with the prefix; one that begins with `model.` is whole already."""
        if name.startswith("model."):
            return name
        return f"{self.prefix}.{name}" if self.prefix else name


def _rounds(weight: Weight) -> bool:
    """Whether products round 32 adjacent inputs to bytes. With an order of inputs, they round others."""
    return isinstance(weight, BlockWeight) and not (weight.kind.floats or weight.kind.float8)


def _parted(view: View, part: Rows) -> View:
    """Return a view of some rows of what another one, or the one otherwise, gives."""
    return replace(view, part=part, otherwise=view.otherwise and _parted(view.otherwise, part))


def _count(part: Rows) -> int:
    """Return the number of rows of a part."""
    if isinstance(part, slice):
        return int(part.stop - part.start)
    return sum(each.parts * each.count for each in ((part,) if isinstance(part, Runs) else part))


def _numbers(part: Rows) -> slice | list[int]:
    """Return which numbers of a vector a part has. Those of a run are adjacent."""
    if isinstance(part, slice):
        return part
    runs = (part,) if isinstance(part, Runs) else part
    firsts = [(run.first + each * run.whole, run.count) for run in runs for each in range(run.parts)]
    return [number for first, count in firsts for number in range(first, first + count)]
