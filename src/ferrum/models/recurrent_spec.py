"""Specification of recurrent parts as data."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.errors import CheckpointError
from ferrum.core.state_shape import StateShape
from ferrum.kernels.op_attributes import DeltaShape
from ferrum.kernels.operations import Array
from ferrum.models.builder import Builder, Place
from ferrum.models.tensor_views import Rows, Runs, View
from ferrum.nn.linear import Linear
from ferrum.nn.recurrent import Convolution, DeltaNet, ShortConv


@dataclass(frozen=True, slots=True)
class ConvolutionSpec:
    """A causal convolution over the last `taps` rows of each channel."""

    channels: int
    taps: int
    bias: bool = False

    def stored(self) -> StateShape:
        """Return what a sequence stores: the rows before the next one."""
        return StateShape((self.taps - 1) * self.channels, self.channels)

    def build(self, make: Builder, name: str) -> Convolution:
        """Return the convolution with its parameters; a checkpoint has a row of taps for each channel."""
        view = View((f"{name}.weight",), transposed=1, width=self.taps)
        return Convolution(
            weight=make.vector(f"{name}.taps", self.taps * self.channels, view),
            slot=make.state_slot(self),
            bias=make.vector(f"{name}.bias", self.channels) if self.bias else None,
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
        return ShortConv(
            inputs=make.linear(names, (size,) * 3, size, bias=self.bias, places=places),
            convolution=ConvolutionSpec(size, self.taps, self.bias).build(make, "conv"),
            output=make.linear(("out_proj",), (size,), size, bias=self.bias),
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
        interleaved: value head h uses key head h mod num_key_heads, as in GGUF files.
        stored_decay: a checkpoint has -exp(A_log), as GGUF files.
    """

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    taps: int
    by_key_head: bool = False
    interleaved: bool = False
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
        columns = self._shape(0, 0).input_columns
        convolution = ConvolutionSpec(columns, self.taps).build(make, "conv1d")
        shape = self._shape(*make.state_slot(self))
        return DeltaNet(
            inputs=self._inputs(make),
            convolution=convolution,
            decay=self._decay(make),
            shift=make.vector("dt_bias", self.num_heads),
            shape=shape,
            norm=make.vector("norm.weight", self.value_dim),
            output=make.linear(("out_proj",), (make.hidden_size,), shape.output_columns),
            eps=make.norms.eps,
        )

    def _shape(self, group: int, layer: int) -> DeltaShape:
        dims = self.key_dim, self.value_dim
        return DeltaShape(group, layer, self.num_heads, self.num_key_heads, *dims, self.interleaved)

    def _decay(self, make: Builder) -> Array:
        if self.stored_decay:
            return make.vector("decay", self.num_heads)
        return make.decay("A_log", self.num_heads)

    def _inputs(self, make: Builder) -> Linear:
        values, keys = self.num_heads * self.value_dim, self.num_key_heads * self.key_dim
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        sizes = (2 * keys + values, values, self.num_heads, self.num_heads)
        places = {}
        if self.by_key_head:
            sources = ("in_proj_qkvz", "in_proj_qkvz", "in_proj_ba", "in_proj_ba")
            rows = zip(sources, self._rows_by_key_head(), strict=True)
            places = {name: Place(*place) for name, place in zip(names, rows, strict=True)}
        return make.linear(names, sizes, make.hidden_size, places=places)

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
