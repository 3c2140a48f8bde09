"""Specification of a tower as data: an encoder of an image's patches, and the connector to the text model.

Families of towers register themselves by the architecture of the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ferrum.core.errors import Unsupported
from ferrum.core.registry import Registry
from ferrum.images.image_processor import ImageFamily
from ferrum.kernels.interface import NetworkOutput
from ferrum.kernels.op_attributes import Activation, EncoderShape
from ferrum.kernels.operations import F32, Array, Operations, Weight
from ferrum.kernels.vectors import grid_rotations
from ferrum.models.builder import Builder, LayerSpec, NormSpec, Place
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import load_families
from ferrum.models.rope import rope_section
from ferrum.models.tensor_names import Rows, View
from ferrum.nn.block import Layer
from ferrum.nn.encoder import EncoderAttention
from ferrum.nn.linear import Linear, NamedWeight, Norm
from ferrum.quant.dense import blank_row
from ferrum.text.text_config import is_wrapped

TokenOf = Callable[[str], int]
Encode = Callable[[str], list[int]]


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
    """

    num_heads: int
    head_dim: int
    output: str
    bias: bool = False
    rope: GridRope | PlaceRope | None = None
    fused: str | None = None

    def build(self, make: Builder) -> EncoderAttention:
        """Return the part with its parameters. Weights of bfloat16 multiply queries and keys in it."""
        inner, names = self.num_heads * self.head_dim, ("q_proj", "k_proj", "v_proj")
        places = {
            name: Place(self.fused, slice(inner * index, inner * (index + 1)))
            for index, name in enumerate(names)
            if self.fused is not None
        }
        qkv = make.linear(names, (inner,) * 3, make.hidden_size, bias=self.bias, places=places)
        output = make.linear((self.output,), (make.hidden_size,), inner, bias=self.bias)
        low = getattr(qkv.weights[0].weight, "format", None) == "bfloat16"
        shape = EncoderShape(self.num_heads, self.head_dim, self.head_dim**-0.5, "bfloat16" if low else "float32")
        match self.rope:
            case GridRope():
                return EncoderAttention(qkv, output, shape, make.grid_rope(self.rope, self.rope.tables))
            case PlaceRope(rows, columns, longest):
                rope = replace(make, positions=longest).rope((*rows, *columns), 1.0)
                return EncoderAttention(qkv, output, shape, rope, self.rope.axes)
        return EncoderAttention(qkv, output, shape)


@dataclass(frozen=True, slots=True)
class ProjectionSpec:
    """A linear layer of a connector.

    Attributes:
        name, outputs: of the layer.
        columns: its inputs in the order of the rows that come in, in a checkpoint with another order.
        transposed: a checkpoint has it as [inputs, outputs].
    """

    name: str
    outputs: int
    bias: bool = False
    activation: Activation | None = None
    columns: Rows | None = None
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class DeepSpec:
    """Features that the text model adds to the rows of an image after one of its first layers (Meng et al. 2024).

    Attributes:
        layer: of the tower, whose states become them.
        norm: name of the norm of joined states.
        connector: to the text model's size.
    """

    layer: int
    norm: str
    connector: tuple[ProjectionSpec, ...]


@dataclass(frozen=True, slots=True)
class TowerSpec:
    """A tower.

    Attributes:
        family: name of the architecture, for display only.
        patch: edge of a patch in pixels.
        side: places of patches per side of a frame.
        merge: patches per side of what becomes one row.
        pooled: that row is their mean; else they are joined.
        projection: name of the layer from pixels to rows.
        projection_bias: it has a bias.
        positions: name of the learned positions, or None.
        interpolated: those of a frame are interpolated from all of them, for images of any shape, corner on corner.
        resized: they are resized as an image is (`kernels.vectors.resized_grid`).
        images_per_patch: frames of a video that a patch joins; an image is repeated.
        most_patches: of a frame; None: one for each place of a square.
        deep: features of layers, in the order of the text model's layers.
        first_norm, last_norm: names of the norms before and after the layers, or None.
        last_eps: of the last norm; None: as the others.
        layers_name: prefix of the layers' names.
        connector: from merged rows to the text model's.
        connector_norm: name and form of the norm before it, or None.
        images: makes the images of the family from functions of the tokenizer: the id of a special token, and the ids
            of a text.
        spaced: see `ImageProcessor`.
    """

    family: str
    hidden_size: int
    norms: NormSpec
    patch: int
    side: int
    merge: int
    projection: str
    layers_name: str
    layers: tuple[LayerSpec, ...]
    connector: tuple[ProjectionSpec, ...]
    images: Callable[[TokenOf, Encode], ImageFamily]
    projection_bias: bool = False
    positions: str | None = None
    first_norm: str | None = None
    last_norm: str | None = None
    last_eps: float | None = None
    renames: tuple[tuple[str, str], ...] = ()
    interpolated: bool = False
    resized: bool = False
    images_per_patch: int = 1
    most_patches: int | None = None
    deep: tuple[DeepSpec, ...] = ()
    connector_norm: tuple[str, NormSpec] | None = None
    pooled: bool = False
    spaced: tuple[str, str] | None = None

    @property
    def pixels(self) -> int:
        """Numbers of a patch."""
        return 3 * self.images_per_patch * self.patch**2

    @property
    def rows(self) -> int:
        """Patches of the largest frame."""
        return self.side**2 if self.most_patches is None else self.most_patches

    def build(self, make: Builder) -> Tower:
        """Return the tower with its parameters."""
        size, inputs = self.hidden_size, self.pixels
        weight = make.matrix(f"{self.projection}.weight", (size, inputs), _as_matrix(self.projection, inputs))
        bias = make.vector(f"{self.projection}.bias", size) if self.projection_bias else None
        fitted = self.interpolated or self.resized
        last = make if self.last_eps is None else replace(make, norms=replace(make.norms, eps=self.last_eps))
        return Tower(
            Entry(make.kernels.weight(blank_row(inputs))),
            Linear((weight,), (bias,)),
            None if self.positions is None or fitted else make.matrix(*self._positions()),
            None if self.first_norm is None else make.norm(self.first_norm),
            tuple(each.build(make.under(f"{self.layers_name}.{index}")) for index, each in enumerate(self.layers)),
            None if self.last_norm is None else last.norm(self.last_norm),
            self._connector(make, self.connector, self.connector_norm),
            make.table(*self._positions()) if fitted else None,
            tuple(each.layer for each in self.deep),
            tuple(self._connector(make, each.connector, (each.norm, self.norms)) for each in self.deep),
        )

    def _positions(self) -> tuple[str, tuple[int, int]]:
        return f"{self.positions}.weight", (self.side**2, self.hidden_size)

    def _connector(
        self, make: Builder, specs: tuple[ProjectionSpec, ...], norm: tuple[str, NormSpec] | None
    ) -> Connector:
        inputs, layers = self.hidden_size * (1 if self.pooled else self.merge**2), []
        entry = Entry(make.kernels.weight(blank_row(inputs)))
        first = None if norm is None else replace(make, norms=norm[1]).norm(norm[0], inputs)
        for each in specs:
            view = None
            if each.columns is not None or each.transposed:
                view = View((f"{each.name}.weight",), columns=each.columns, transposed=int(each.transposed))
            weight = make.matrix(f"{each.name}.weight", (each.outputs, inputs), view)
            bias = make.vector(f"{each.name}.bias", each.outputs) if each.bias else None
            layers.append(Linear((weight,), (bias,), each.activation))
            inputs = each.outputs
        return Connector(entry, first, tuple(layers))


def _as_matrix(name: str, inputs: int) -> View:
    """Return the view of a convolution's weight [N, channels, height, width] as a matrix [N, K]."""
    return View((f"{name}.weight",), width=inputs)


# ---- The networks. Rows enter as given rows of a step, see `StepTables.given` ----


@dataclass(frozen=True, slots=True)
class Entry:
    """The first operation of a network whose rows are all given: a table of one row, which none of them uses."""

    table: Weight

    def __call__(self, kernels: Operations) -> Array:
        """Return the given rows [R, K]."""
        return kernels.embed(self.table)


@dataclass(frozen=True, slots=True)
class Tower:
    """The network from patches to rows, a frame per span: [R, K] -> [R, H].

    Attributes:
        positions: a row for each place, or None.
        first_norm, last_norm: or None.
        connector: the network that runs after it.
        table: learned positions that are fitted to a frame, or None. They are numbers to add to the given rows.
        deep_layers, deep_connectors: layers whose states are returned as `NetworkOutput.others`, and what follows.
    """

    entry: Entry
    projection: Linear
    positions: NamedWeight | None
    first_norm: Norm | None
    layers: tuple[Layer, ...]
    last_norm: Norm | None
    connector: Connector
    table: Weight | None = None
    deep_layers: tuple[int, ...] = ()
    deep_connectors: tuple[Connector, ...] = ()

    def __call__(self, kernels: Operations, states: list[Array] | None = None) -> NetworkOutput:  # noqa: ARG002
        """Run all layers. The results are all the rows."""
        (x,) = self.projection(kernels, self.entry(kernels))
        if self.positions is not None:
            x = kernels.add(x, kernels.embed_positions(self.positions.weight))
        if self.table is not None:
            x = kernels.add_given(x)
        residual, delta = x if self.first_norm is None else self.first_norm(kernels, x), None
        deep = {}
        for index, layer in enumerate(self.layers):
            residual, delta = layer(kernels, residual, delta)
            if index in self.deep_layers:
                residual, delta = residual if delta is None else kernels.add(residual, delta), None
                deep[index] = residual
        if self.last_norm is not None:
            _, x = self.last_norm.add(kernels, residual, delta)
        else:
            x = residual if delta is None else kernels.add(residual, delta)
        return NetworkOutput(x, x, x, kernels.finite(x), tuple(deep[layer] for layer in self.deep_layers))


@dataclass(frozen=True, slots=True)
class Connector:
    """The network from merged rows to those of the text model: [R, merge x merge x H], or means [R, H] -> [R, text H].

    Attributes:
        norm: before the layers, or None.
    """

    entry: Entry
    norm: Norm | None
    layers: tuple[Linear, ...]

    def __call__(self, kernels: Operations, states: list[Array] | None = None) -> NetworkOutput:  # noqa: ARG002
        """Run all layers. The results are all the rows."""
        x = self.entry(kernels)
        if self.norm is not None:
            x = self.norm(kernels, x)
        for layer in self.layers:
            (x,) = layer(kernels, x)
        return NetworkOutput(x, x, x, kernels.finite(x))


# ---- Families ----

TOWERS: Registry[Callable[[FamilyConfig, Mapping[str, Any]], TowerSpec]] = Registry("tower")
"""Towers by architecture. The arguments are the whole model's configuration, and that of its image processor."""


def tower_spec(config: Mapping[str, Any], processor: Mapping[str, Any]) -> TowerSpec | None:
    """Return the tower of a model; None if it has none that is implemented.

    Args:
        config: the parsed `config.json` of the whole model.
        processor: the parsed `preprocessor_config.json`.

    Raises:
        CheckpointError: a field is missing or invalid.
        Unsupported: a feature is not implemented.
    """
    load_families()
    names = config.get("architectures")
    if not is_wrapped(config) or not isinstance(names, list) or names[0] not in TOWERS:
        return None
    return TOWERS.get(names[0])(FamilyConfig(config), processor)


def vision_config(config: FamilyConfig, defaults: Mapping[str, Any]) -> FamilyConfig:
    """Return the configuration of the tower, over the defaults of its class. Raises Unsupported."""
    vision = {**defaults, **(config.values.get("vision_config") or {})}
    if vision.get("num_channels", 3) != 3:
        raise Unsupported(f"config.json: vision_config.num_channels={vision['num_channels']!r}", "must be 3")
    return FamilyConfig(vision)


_HEADS: Final = "num_attention_heads"


def heads_of_tower(vision: FamilyConfig) -> tuple[int, int]:
    """Return the number of heads of a tower, and their size."""
    heads = vision.integer(_HEADS)
    return heads, vision.integer("head_dim", vision.integer("hidden_size") // heads)


def axial_theta(vision: FamilyConfig) -> float:
    """Return the base of a tower's rotations by row and column. Raises Unsupported for rotations of another type."""
    section, kind = rope_section(vision)
    if kind not in ("axial", "default"):
        raise Unsupported(f"config.json: vision_config: rope type {kind!r}", "known: axial")
    return section.number("rope_theta", vision.values["rope_theta"])
