"""Specification of recurrent parts as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ferrum.core.errors import CheckpointError
from ferrum.core.state_shape import StateShape
from ferrum.kernels.op_attributes import DeltaShape
from ferrum.kernels.operations import Array
from ferrum.models.builder import Builder, Place
from ferrum.models.tensor_names import Rows, Runs, View
from ferrum.nn.linear import Linear, Starts
from ferrum.nn.recurrent import Convolution, DeltaNet, ShortConv

TILED: Final = ".tiled"
"""Ending of the names of parameters whose value heads are in the order of key heads, again and again."""


@dataclass(frozen=True, slots=True)
class ConvolutionSpec:
    """A causal convolution over the last `taps` rows of each channel."""

    channels: int
    taps: int
    bias: bool = False

    def stored(self) -> StateShape:
        """Return what a sequence stores: the rows before the next one."""
        return StateShape((self.taps - 1) * self.channels, self.channels)

    def build(
        self, make: Builder, name: str, order: Rows | None = None, own: tuple[Runs, ...] | None = None
    ) -> Convolution:
        """Return the convolution with its parameters; a checkpoint has a row of taps for each channel.

        Args:
            make, name: of the part.
            order: of a checkpoint's channels; None: as they are. A store may have them in it (`NAME.tiled.weight`).
            own: the channels of this rank, runs of one part; None: all.
        """
        channels = self.channels if own is None else sum(run.count for run in own)
        size = self.taps * self.channels
        taps = None
        if own is not None:
            firsts = range(0, size, self.channels)
            taps = tuple(Runs(1, size, first + run.first, run.count) for first in firsts for run in own)
        view = View((f"{name}.weight",), order, transposed=1, width=self.taps)
        if order is not None:
            view = replace(view, sources=(f"{name}{TILED}.weight",), rows=None, otherwise=view)
        return Convolution(
            weight=make.vector(f"{name}.taps", size, view, part=taps),
            slot=make.state_slot(self, replace(self, channels=channels).stored()),
            bias=make.vector(f"{name}.bias", self.channels, part=own) if self.bias else None,
        )


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """A gated short convolution (LFM2), as wide as the model."""

    taps: int
    bias: bool = False

    def build(self, make: Builder) -> ShortConv:
        """Return the part with its parameters."""
        size = make.hidden_size
        names = ("in_proj.b", "in_proj.c", "in_proj.x")
        places = {name: Place("in_proj", slice(i * size, (i + 1) * size)) for i, name in enumerate(names)}
        join = make.cut("in_proj", size)
        own = None if join is None else make.ranks.own(join)
        channels = None if own is None else (Runs(1, size, own.start, own.stop - own.start),)
        parts = None if own is None else (own,) * 3
        return ShortConv(
            inputs=make.linear(names, (size,) * 3, size, bias=self.bias, places=places, parts=parts),
            convolution=ConvolutionSpec(size, self.taps, self.bias).build(make, "conv", own=channels),
            output=make.linear(("out_proj",), (size,), size, bias=self.bias),
            join=join,
        )


@dataclass(frozen=True, slots=True)
class DeltaNetSpec:
    """A gated DeltaNet layer.

    Attributes:
        num_heads, num_key_heads: heads of values, and of queries and keys.
        key_dim, value_dim: widths of a head.
        taps: of the convolution.
        by_key_head: a checkpoint has the projections to q, k, v and z in one tensor, key head after key head, and those
            to b and a in another one (Qwen3-Next).
        tiled: value head h uses key head h mod num_key_heads, as in GGUF files. In checkpoints the value heads of
            a key head are adjacent.
        stored_decay: a checkpoint has -exp(A_log), as GGUF files.
    """

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    taps: int
    by_key_head: bool = False
    tiled: bool = False
    stored_decay: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_key_heads:
            raise CheckpointError(
                f"config.json: linear_num_value_heads ({self.num_heads}) must be a multiple of linear_num_key_heads "
                f"({self.num_key_heads})"
            )

    def stored(self) -> StateShape:
        """Return what a sequence stores: a matrix of each head."""
        shape = self._shape(0, 0)
        return StateShape(self.num_heads * self.key_dim * self.value_dim, shape.input_columns + 2 * self.num_heads)

    def build(self, make: Builder) -> DeltaNet:
        """Return the part with its parameters."""
        shape = self._shape(0, 0)
        order = self._tiled(self.value_dim, shape.input_columns - self._values) if self.tiled else None
        starts = self._starts(make)
        own = None if starts is None else make.ranks.own(starts)
        part = None if own is None else self._value_rows(own)
        channels = None if own is None else self._channels(own)
        convolution = ConvolutionSpec(shape.input_columns, self.taps).build(make, "conv1d", order, channels)
        mine = self if own is None else self._of(own)
        shape = mine._shape(*make.state_slot(self, mine.stored()))
        heads = self._tiled(1) if self.tiled else None
        return DeltaNet(
            inputs=self._inputs(make, own),
            convolution=convolution,
            decay=self._decay(make, heads, part),
            shift=self._by_head(partial(make.vector, part=part), "dt_bias", heads),
            shape=shape,
            norm=make.vector("norm.weight", self.value_dim),
            output=self._output(make),
            eps=make.norms.eps,
            join=None if starts is None else tuple(head * self._run * self.value_dim for head in starts),
            tiles=self._repeats if self.tiled else 1,
        )

    @property
    def _repeats(self) -> int:
        """Value heads of a key head."""
        return self.num_heads // self.num_key_heads

    @property
    def _run(self) -> int:
        """Adjacent value heads of a key head."""
        return 1 if self.tiled else self._repeats

    def _starts(self, make: Builder) -> Starts | None:
        """Return the first key head of each rank, which has their value heads. Raises Unsupported."""
        count = make.ranks.count
        if count == 1:
            return None
        if self.num_key_heads % count:
            raise make.ranks.refusal(f"{make.prefix} has {self.num_key_heads} key heads, which the degree must divide")
        return tuple(range(0, self.num_key_heads + 1, self.num_key_heads // count))

    def _of(self, own: slice) -> DeltaNetSpec:
        """Return the layer of these key heads."""
        heads = own.stop - own.start
        return replace(self, num_heads=heads * self._repeats, num_key_heads=heads)

    def _channels(self, own: slice) -> tuple[Runs, ...]:
        """Return the rows of these key heads and of their value heads in q, k and v together, runs of one part."""
        keys, first = self.num_key_heads * self.key_dim, own.start * self.key_dim
        whole, count = 2 * keys + self._values, (own.stop - own.start) * self.key_dim
        rows = self._value_rows(own, self.value_dim, 2 * keys)
        runs = (Runs(1, whole, rows.start, rows.stop - rows.start),) if isinstance(rows, slice) else rows
        return Runs(1, whole, first, count), Runs(1, whole, keys + first, count), *runs

    def _value_rows(self, own: slice, width: int = 1, first: int = 0) -> slice | tuple[Runs, ...]:
        """Return the rows of the value heads of these key heads, each of that width, after those before the first."""
        begin, count = first + own.start * self._run * width, (own.stop - own.start) * self._run * width
        if not self.tiled:
            return slice(begin, begin + count)
        tile, whole = self.num_key_heads * width, first + self.num_heads * width
        return tuple(Runs(1, whole, begin + each * tile, count) for each in range(self._repeats))

    @property
    def _values(self) -> int:
        return self.num_heads * self.value_dim

    def _shape(self, group: int, layer: int) -> DeltaShape:
        dims = self.key_dim, self.value_dim
        return DeltaShape(group, layer, self.num_heads, self.num_key_heads, *dims, self.tiled)

    def _tiled(self, width: int, first: int = 0) -> tuple[Runs, ...]:
        """Return the rows of value heads in the order of key heads, again and again, with those before the first."""
        heads, repeats = self.num_key_heads, self.num_heads // self.num_key_heads
        tiles = tuple(Runs(heads, repeats * width, first + each * width, width) for each in range(repeats))
        return (Runs(1, first + self.num_heads * width, 0, first), *tiles) if first else tiles

    def _by_head(self, make: Callable[[str, int, View | None], Array], name: str, order: Rows | None) -> Array:
        """Return a vector of a number for each value head."""
        if order is None:
            return make(name, self.num_heads, None)
        return make(f"{name}{TILED}", self.num_heads, View((name,), order))

    def _decay(self, make: Builder, order: Rows | None, part: Rows | None) -> Array:
        if self.stored_decay:
            return make.vector("decay", self.num_heads, part=part)
        return self._by_head(partial(make.decay, part=part), "A_log", order)

    def _output(self, make: Builder) -> Linear:
        places = {}
        name = f"out_proj{TILED}" if self.tiled else "out_proj"
        if self.tiled:
            places[name] = Place("out_proj", columns=self._tiled(self.value_dim))
        return make.linear((name,), (make.hidden_size,), self._values, places=places)

    def _inputs(self, make: Builder, own: slice | None) -> Linear:
        values, keys = self._values, self.num_key_heads * self.key_dim
        names: tuple[str, ...] = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        sizes = (2 * keys + values, values, self.num_heads, self.num_heads)
        places = {}
        if self.by_key_head:
            sources = ("in_proj_qkvz", "in_proj_qkvz", "in_proj_ba", "in_proj_ba")
            rows = zip(sources, self._rows_by_key_head(), strict=True)
            places = {name: Place(*place) for name, place in zip(names, rows, strict=True)}
        elif self.tiled:
            orders = self._tiled(self.value_dim, 2 * keys), self._tiled(self.value_dim), self._tiled(1), self._tiled(1)
            places = {f"{name}{TILED}": Place(name, rows) for name, rows in zip(names, orders, strict=True)}
            names = tuple(places)
        parts: tuple[Rows, ...] | None = None
        if own is not None:
            heads = self._value_rows(own)
            parts = self._channels(own), self._value_rows(own, self.value_dim), heads, heads
        return make.linear(names, sizes, make.hidden_size, places=places, parts=parts)

    def _rows_by_key_head(self) -> tuple[Rows, ...]:
        """Return the rows of q, k and v together, of z, b and a, in tensors with key head after key head."""
        heads, repeats = self.num_key_heads, self.num_heads // self.num_key_heads
        values = repeats * self.value_dim
        whole = 2 * self.key_dim + 2 * values

        def runs(first: int, count: int) -> Runs:
            return Runs(heads, whole, first, count)

        q, k = runs(0, self.key_dim), runs(self.key_dim, self.key_dim)
        v, z = runs(2 * self.key_dim, values), runs(2 * self.key_dim + values, values)
        b, a = (Runs(heads, 2 * repeats, first, repeats) for first in (0, repeats))
        return (q, k, v), z, b, a
