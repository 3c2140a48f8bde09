"""`ImageTower`: the tower of a model on kernels, from prepared images to the rows that stand for them.

Which images are computed when is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Final

import numpy as np

from ferrum.core.config import ModelConfig
from ferrum.core.errors import FerrumError, StepError
from ferrum.core.logging import warn_once
from ferrum.images.decoded_image import DecodedImage
from ferrum.images.image_processor import Frame, ImageProcessor, PreparedImage
from ferrum.kernels.interface import Kernels, Network, ParameterForms, Replay, StepTables
from ferrum.kernels.op_spec import Extent
from ferrum.kernels.operations import F32, Int32, Weight
from ferrum.kernels.recorded_program import record
from ferrum.kernels.vectors import resized_grid
from ferrum.models.builder import Builder
from ferrum.models.decoder import Formless, Inventory, list_parameters
from ferrum.models.tensor_names import ParameterReader
from ferrum.models.tower_spec import Tower, TowerSpec
from ferrum.runtime.backend import choose_kernels
from ferrum.runtime.memory import memory_for
from ferrum.runtime.step_tables import frame_tables
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.model_source import ModelSource
from ferrum.sources.open_model import NO_PROJECTOR
from ferrum.sources.parameters import Parameters, PlannedParameters
from ferrum.sources.tower_files import image_processor, read_tower, tower_store
from ferrum.sources.viewed_tensors import with_views

_IGNORED: Final = ("*.inv_freq",)
"""Frequencies, which some checkpoints have."""


@dataclass(frozen=True, slots=True)
class ImageTower:
    """A tower, ready to compute. Its kernels compute nothing else.

    Attributes:
        processor: of the model's images.
        patches: the program from patches to rows of the tower, for the largest frame.
        connector: the program from those, joined or their means, to rows of the text model.
        merge: patches that become one row.
        positions: learned ones [side x side, H], if they are fitted to each frame.
        fit: how.
        deep: programs like the connector, from states of layers to features that follow the row's own numbers.
        pooled: by their mean.
        scale: factor of the mean.
        standard: what is subtracted from that product, and a factor of the difference, or none.
    """

    processor: ImageProcessor
    kernels: Kernels
    patches: Replay
    connector: Replay
    merge: int
    positions: Weight | None = None
    fit: Callable[[Weight, Int32], F32] | None = None
    deep: tuple[Replay, ...] = ()
    pooled: bool = False
    scale: float = 1.0
    standard: tuple[F32, ...] = ()

    def prepare(self, image: DecodedImage) -> PreparedImage:
        """Return an image as the tower reads it. Raises Unsupported without Pillow."""
        return self.processor.prepare(image)

    def rows_of(self, image: PreparedImage) -> Generator[None, None, F32]:
        """Compute the rows of an image, f32 [rows, H], and yield after each operation.

        With features of layers, they are [rows, H x (1 + features)].

        Raises:
            StepError: a row is not finite.
        """
        found = list[F32]()
        for frame in image.frames:
            rows = yield from self._of_frame(frame)
            found.append(rows)
        return np.concatenate(found)

    def _of_frame(self, frame: Frame) -> Generator[None, None, F32]:
        added = None
        if self.positions is not None and self.fit is not None and frame.places is not None:
            added = self.fit(self.positions, frame.places)
        seen = yield from self._run(self.patches, frame_tables(frame.patches, frame.positions, added, frame.places))
        parts = list[F32]()
        for connector, states in zip((self.connector, *self.deep), seen, strict=True):
            joined = states.reshape(len(states) // self.merge, -1)
            if self.pooled:
                joined = self._scaled(mean_rows(joined, self.merge))
            parts.append((yield from self._connected(connector, joined)))
        rows = np.concatenate(parts, axis=1) if self.deep else parts[0]
        if not np.isfinite(rows).all():
            raise StepError("the rows of an image are not finite")
        return rows

    def _scaled(self, means: F32) -> F32:
        means = means * np.float32(self.scale)
        if not self.standard:
            return means
        bias, factor = self.standard
        return (means - bias) * factor

    def _connected(self, connector: Replay, joined: F32) -> Generator[None, None, F32]:
        found = list[F32]()
        for begin in range(0, len(joined), _AT_ONCE):
            part = joined[begin : begin + _AT_ONCE]
            rows = yield from self._run(connector, frame_tables(part, np.zeros(len(part), np.int32)))
            found += rows
        return np.concatenate(found)

    def _run(self, replay: Replay, tables: StepTables) -> Generator[None, None, list[F32]]:
        """Run a program; return its result and the others."""
        output = None
        for index in range(len(replay.program.ops)):
            output = replay.run_part(self.kernels, tables, range(index, index + 1))
            yield
        assert output is not None
        return [np.array(self.kernels.host(each)) for each in (output.logits, *output.others)]


def interpolated(table: Weight, places: Int32) -> F32:
    """Return the learned positions of the patches of a frame, f32 [n, H].

    A frame of any size is laid over the square of all positions, corner on corner, and each patch gets the mean of
    the four around it, weighted by nearness.

    Args:
        table: [side x side, H].
        places: [n, 3], of all patches of the frame.
    """
    side = isqrt(table.shape[0])
    ends = np.maximum(places[:, 1:].max(axis=0), 1)
    places_on_square = places[:, 1:].astype(np.int64) * (side - 1)
    low, part = places_on_square // ends, (places_on_square % ends / ends).astype(np.float32)
    high = np.minimum(low + 1, side - 1)
    found = np.zeros((len(places), table.shape[1]), np.float32)
    for rows, by_row in ((low[:, 0], 1 - part[:, 0]), (high[:, 0], part[:, 0])):
        for columns, by_column in ((low[:, 1], 1 - part[:, 1]), (high[:, 1], part[:, 1])):
            found += (by_row * by_column)[:, None] * table.rows((rows * side + columns).astype(np.int32))
    return found


def resized(table: Weight, places: Int32) -> F32:
    """Return the same, resized as an image is."""
    side = isqrt(table.shape[0])
    _, rows, columns = map(int, places.max(axis=0) + 1)
    grid = table.rows(np.arange(side**2, dtype=np.int32)).reshape(side, side, -1)
    return resized_grid(grid, rows, columns)[places[:, 1], places[:, 2]]


def summed(table: Weight, places: Int32) -> F32:
    """Return the sums of the position of each patch's column and that of its row.

    Args:
        table: [2 x side, H], those of columns and then those of rows.
        places: [n, 3].
    """
    side = table.shape[0] // 2
    return table.rows(places[:, 2]) + table.rows(side + places[:, 1])


_FITS: Final[Mapping[str, Callable[[Weight, Int32], F32]]] = {
    "interpolated": interpolated,
    "resized": resized,
    "summed": summed,
}


def mean_rows(joined: F32, count: int) -> F32:
    """Return the means of `count` rows that stand next to each other, [R, count x H] -> [R, H], added in order."""
    parts = np.split(joined, count, axis=1)
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total * np.float32(1 / count)


def open_tower(source: ModelSource, config: ModelConfig) -> ImageTower:
    """Return the tower of a model, on kernels of the CPU.

    Errors as `read_tower`, `image_processor` and `load_tower`.
    """
    spec = read_tower(source)
    processor = image_processor(spec, source.tokenizer())
    return load_tower(spec, tower_store(source), processor, config)


def load_tower(spec: TowerSpec, store: TensorStore, processor: ImageProcessor, config: ModelConfig) -> ImageTower:
    """Return a tower with its parameters.

    Args:
        spec: of the tower.
        store: its tensors.
        processor: of the model's images.
        config: the model's options; matrices keep the checkpoint's numbers unless `dtype` names others.

    Raises:
        CheckpointError: a tensor is missing, left over, damaged or misshapen.
        Unsupported: the tensors are quantised, or the kernels cannot run.
        CapacityError: not enough memory.
    """
    on_cpu = config.device == "cpu"
    options = (config.kernels, config.isa, config.threads) if on_cpu else ("auto", "auto", None)
    kernels = choose_kernels("cpu", *options).kernels
    asks = _asks(spec)
    parameters = Parameters(with_views(store, asks), config.dtype)
    ignored = (*_IGNORED, *spec.ignored_names)
    parameters.expect(asks.shapes, ignored)
    with memory_for("the model's tower for images"):
        tower = spec.build(builder_of(spec, parameters, kernels))
        kernels.allocate(())
        patches, connector, *deep = (
            kernels.prepare(record(network), {**_NO_ROWS, Extent.ROWS: rows})
            for network, rows in _networks(spec, tower)
        )
    parameters.finish(ignored)
    return ImageTower(
        processor,
        kernels,
        patches,
        connector,
        spec.merge**2,
        tower.table,
        None if spec.fitted is None else _FITS[spec.fitted],
        tuple(deep),
        spec.pooled,
        spec.pooled_scale,
        tuple(each.rows(np.zeros(1, np.int32)) for each in tower.standard),
    )


def _networks(spec: TowerSpec, tower: Tower) -> Iterator[tuple[Network, int]]:
    """Yield the tower and its connectors, each with the most rows that it computes at once."""
    yield tower, spec.rows
    for connector in (tower.connector, *tower.deep_connectors):
        yield connector, min(_AT_ONCE, spec.rows // spec.merge**2)


def tower_bytes(source: ModelSource, config: ModelConfig) -> int:
    """Return the bytes that a model's tower will take once loaded; 0 if it has none, or one that would not load.

    These are its matrices, and the buffers of its largest frame. Errors of a tower whose file the options name are
    raised: those of `load_tower`.
    """
    if config.mmproj not in (None, NO_PROJECTOR):
        return _tower_bytes(read_tower(source), tower_store(source), config)
    try:
        spec, store = read_tower(source), tower_store(source)
    except FerrumError:  # which requests with images get
        return 0
    try:
        return _tower_bytes(spec, store, config)
    except FerrumError as error:
        warn_once(f"{source.where('')}: images are refused, because its tower would not load: {error}")
        return 0


def _tower_bytes(spec: TowerSpec, store: TensorStore, config: ModelConfig) -> int:
    asks = _asks(spec)
    planned = PlannedParameters(with_views(store, asks), config.dtype)
    planned.expect(asks.shapes, (*_IGNORED, *spec.ignored_names))
    sizes = [
        planned.matrix(name, (shape[0], shape[1])).nbytes for name, shape in asks.shapes.items() if len(shape) == 2
    ]
    tower = spec.build(builder_of(spec, planned, Formless()))
    buffers = (rows * width for network, rows in _networks(spec, tower) for _, width in record(network).buffers)
    return sum(sizes) + sum(buffers)


_AT_ONCE: Final = 512
"""Most rows that a connector computes at once. A cut changes no bit."""

_NO_ROWS: Final = {Extent.LOGITS: 0, Extent.HIDDEN: 0, Extent.SPANS: 1}


def _asks(spec: TowerSpec) -> Inventory:
    return list_parameters(lambda source, forms: builder_of(spec, source, forms), spec.build)


def builder_of(spec: TowerSpec, source: ParameterReader, kernels: ParameterForms) -> Builder:
    """Return the maker of a tower's parts."""
    return Builder(source, kernels, spec.hidden_size, spec.norms, 0, spec.renames)
