"""Parts of encoders of images as data: attention among all patches of a frame, and a feed-forward with bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ferrum.kernels.op_attributes import Activation, EncoderShape
from ferrum.kernels.operations import F32, Array
from ferrum.kernels.vectors import grid_rotations
from ferrum.models.builder import Builder, Place
from ferrum.models.tensor_names import Runs, View
from ferrum.nn.encoder import Clipped, ClippedMlp, EncoderAttention, HeadNorms
from ferrum.nn.linear import Linear


@dataclass(frozen=True, slots=True)
class GridRope:
    """A rotation by the row and the column of a patch: half of the pairs each.

    Attributes:
        rows, columns: frequencies in radians per patch.
        side: places per side. The number of a place is row x side + column.
    """

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    side: int

    def tables(self) -> tuple[F32, F32]:
        """Return cosines and sines [places, pairs]."""
        return grid_rotations(self.rows, self.columns, self.side)


@dataclass(frozen=True, slots=True)
class PlaceRope:
    """A rotation by the row and the column of a patch, for images of any shape: half of the pairs each.

    Attributes:
        rows, columns: frequencies in radians per patch.
        longest: most patches of a side.
    """

    rows: tuple[float, ...]
    columns: tuple[float, ...]
    longest: int

    @property
    def axes(self) -> tuple[int, ...]:
        """The number of a place that turns each pair."""
        return (1,) * len(self.rows) + (2,) * len(self.columns)


@dataclass(frozen=True, slots=True)
class EncoderAttentionSpec:
    """Attention among all patches of a frame.

    Attributes:
        output: name of the output projection.
        bias: all projections have biases.
        fused: name of one projection to queries, keys and values, or None.
        scale: factor of q . k; None: head_dim^-0.5.
        normed: queries, keys and values are normed by head, values without a weight.
        by_axis: in a checkpoint, the pairs of columns are the halves of the first half of a head, and those of rows
            the halves of the second. Their rows are put into halves at load, which changes no score.
        clipped: the inputs and results of all projections are bounded.
    """

    num_heads: int
    head_dim: int
    output: str
    bias: bool = False
    rope: GridRope | PlaceRope | None = None
    fused: str | None = None
    scale: float | None = None
    normed: bool = False
    by_axis: bool = False
    clipped: bool = False

    def build(self, make: Builder) -> EncoderAttention:
        """Return the part with its parameters. Weights of bfloat16 multiply queries and keys in it."""
        inner, names = self.num_heads * self.head_dim, ("q_proj", "k_proj", "v_proj")
        places = {
            name: Place(self.fused, slice(inner * index, inner * (index + 1)))
            for index, name in enumerate(names)
            if self.fused is not None
        }
        own = names
        if self.by_axis:
            own = "q_proj.halves", "k_proj.halves", "v_proj"
            places |= {f"{name}.halves": Place(name, self._halves(self.num_heads)) for name in names[:2]}
        qkv = make.linear(own, (inner,) * 3, make.hidden_size, bias=self.bias, places=places)
        output = make.linear((self.output,), (make.hidden_size,), inner, bias=self.bias)
        low = getattr(qkv.weights[0].weight, "format", None) == "bfloat16"
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        return EncoderAttention(
            _bounded(make, qkv, names) if self.clipped else qkv,
            _bounded(make, output, (self.output,)) if self.clipped else output,
            EncoderShape(self.num_heads, self.head_dim, scale, "bfloat16" if low else "float32"),
            self._rope(make),
            self.rope.axes if isinstance(self.rope, PlaceRope) else (),
            self._norms(make) if self.normed else None,
        )

    def _rope(self, make: Builder) -> Array | tuple[Array, Array] | None:
        match self.rope:
            case GridRope():
                return make.grid_rope(self.rope, self.rope.tables)
            case PlaceRope(rows, columns, longest):
                return replace(make, positions=longest).rope((*rows, *columns), 1.0)
        return None

    def _halves(self, heads: int) -> tuple[Runs, ...]:
        """Return the rows of heads in the order of halves, each with the pairs of rows before those of columns."""
        dim, part = self.head_dim, self.head_dim // 4
        firsts = (head * dim + part * quarter for head in range(heads) for quarter in (2, 0, 3, 1))
        return tuple(Runs(1, heads * dim, first, part) for first in firsts)

    def _norms(self, make: Builder) -> HeadNorms:
        dim = self.head_dim
        views = {
            name: View((f"{name}.weight",), self._halves(1) if self.by_axis else None) for name in ("q_norm", "k_norm")
        }
        q, k = (make.vector(f"{name}.halves", dim, view) for name, view in views.items())
        return HeadNorms(q, k, make.ones(dim), make.norms.eps)


@dataclass(frozen=True, slots=True)
class ClippedMlpSpec:
    """A gated feed-forward whose inputs and results of projections are bounded."""

    intermediate_size: int
    activation: Activation

    def build(self, make: Builder) -> ClippedMlp:
        """Return the part with its parameters."""
        hidden, inner, names = make.hidden_size, self.intermediate_size, ("gate_proj", "up_proj")
        inputs = _bounded(make, make.linear(names, (inner, inner), hidden), names)
        output = _bounded(make, make.linear(("down_proj",), (hidden,), inner), ("down_proj",))
        return ClippedMlp(inputs, output, self.activation)


def _bounded(make: Builder, linear: Linear, names: tuple[str, ...]) -> Clipped:
    """Return linear layers with their bounds, which are numbers next to the weights of these names."""

    def bound(name: str) -> float:
        return make.number(name, View((name,)))  # which files have without a shape

    def clips(side: str) -> tuple[Activation, ...]:
        bounds = ((bound(f"{name}.{side}_min"), bound(f"{name}.{side}_max")) for name in names)
        return tuple(Activation("clip", least=least, most=most) for least, most in bounds)

    return Clipped(linear, clips("input"), clips("output"))
