"""Specification of a tower as data: an encoder of an image's patches, and the connector to the text model.

Families of towers register themselves by the architecture of the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from ferrum.core.errors import Unsupported
from ferrum.core.registry import Registry
from ferrum.images.image_processor import ImageFamily
from ferrum.kernels.interface import NetworkOutput
from ferrum.kernels.op_attributes import Activation
from ferrum.kernels.operations import Array, Operations, Weight
from ferrum.models.builder import Builder, LayerSpec, NormSpec
from ferrum.models.config_reader import FamilyConfig
from ferrum.models.families import load_families
from ferrum.models.rope import rope_section
from ferrum.models.tensor_names import Rows, Runs, View
from ferrum.nn.block import Layer
from ferrum.nn.linear import Linear, NamedWeight, Norm
from ferrum.quant.dense import blank_row
from ferrum.text.text_config import is_wrapped

TokenOf = Callable[[str], int]
Encode = Callable[[str], list[int]]


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
        pooled_scale: factor of the mean.
        standard: names of what is subtracted from that product, and of a factor of the difference, or None.
        projection: name of the layer from pixels to rows.
        projection_bias: it has a bias.
        positions: name of the learned positions, or None.
        fitted: how those of a frame of any shape are found; None: by the number of each place.
            interpolated  from all of them, corner on corner
            resized       as an image is (`kernels.vectors.resized_grid`)
            summed        one of a patch's column and one of its row
        all_positions: places per side that a checkpoint has, if more than `side`; of summed ones.
        images_per_patch: frames of a video that a patch joins; an image is repeated.
        most_patches: of a frame; None: one for each place of a square.
        deep: features of layers, in the order of the text model's layers.
        first_norm, last_norm: names of the norms before and after the layers, or None.
        last_eps: of the last norm; None: as the others.
        layers_name: prefix of the layers' names.
        connector: from merged rows to the text model's.
        connector_norm: name and form of the norm before it, or None. Without a name it has no weight.
        images: makes the images of the family from functions of the tokenizer: the id of a special token, and the ids
            of a text.
        spaced: see `ImageProcessor`.
        ignored_names: patterns of tensors that the tower does not use.
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
    fitted: Literal["interpolated", "resized", "summed"] | None = None
    all_positions: int | None = None
    images_per_patch: int = 1
    most_patches: int | None = None
    deep: tuple[DeepSpec, ...] = ()
    connector_norm: tuple[str | None, NormSpec] | None = None
    pooled: bool = False
    pooled_scale: float = 1.0
    standard: tuple[str, str] | None = None
    spaced: tuple[str, str] | None = None
    ignored_names: tuple[str, ...] = ()

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
        last = make if self.last_eps is None else replace(make, norms=replace(make.norms, eps=self.last_eps))
        return Tower(
            Entry(make.kernels.weight(blank_row(inputs))),
            Linear((weight,), (bias,)),
            None if self.positions is None or self.fitted else make.matrix(*self._positions()),
            None if self.first_norm is None else make.norm(self.first_norm),
            tuple(each.build(make.under(f"{self.layers_name}.{index}")) for index, each in enumerate(self.layers)),
            None if self.last_norm is None else last.norm(self.last_norm),
            self._connector(make, self.connector, self.connector_norm),
            make.table(*self._positions()) if self.fitted else None,
            tuple(each.layer for each in self.deep),
            tuple(self._connector(make, each.connector, (each.norm, self.norms)) for each in self.deep),
            tuple(make.table(name, (1, size), View((name,), width=size)) for name in self.standard or ()),
        )

    def _positions(self) -> tuple[str, tuple[int, int], View | None]:
        """Return the name, the shape and the view of the learned positions."""
        name = f"{self.positions}.weight"
        if self.fitted != "summed":
            return name, (self.side**2, self.hidden_size), None
        rows = Runs(2, self.all_positions or self.side, 0, self.side)
        return name, (2 * self.side, self.hidden_size), View((name,), rows)

    def _connector(
        self, make: Builder, specs: tuple[ProjectionSpec, ...], norm: tuple[str | None, NormSpec] | None
    ) -> Connector:
        inputs, layers = self.hidden_size * (1 if self.pooled else self.merge**2), []
        entry = Entry(make.kernels.weight(blank_row(inputs)))
        first = None
        if norm is not None:
            name, form = norm
            first = Norm(make.ones(inputs), form.eps) if name is None else replace(make, norms=form).norm(name, inputs)
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
        standard: of `TowerSpec.standard` [1, H] each, or none.
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
    standard: tuple[Weight, ...] = ()

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
