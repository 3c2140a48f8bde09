"""`TowerParts`: what a model's files say of its tower, and `TowerCheckpoint`, its tensors in a directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ferrum.core.errors import Unsupported
from ferrum.sources.checkpoint import Checkpoint, TensorStore, read_config, tower_names
from ferrum.text.model_files import ModelFiles, read_json_object

PREPROCESSOR: Final = "preprocessor_config.json"
PROCESSOR: Final = "processor_config.json"

_FEATURE: Final = "images"


class TowerParts(NamedTuple):
    """The tower of a model as its files have it.

    Attributes:
        config: of the whole model, as `config.json` has it.
        processor: of its images, as `preprocessor_config.json` has it.
        store: the tensors, by their names without the prefix `model.`.
    """

    config: Mapping[str, Any]
    processor: Mapping[str, Any]
    store: TensorStore


class TowerCheckpoint(Checkpoint):
    """The tower of a directory: tensors without the prefix `model.`, and the configuration of the whole.

    Raises: as `Checkpoint`.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, names=tower_names)
        self.config = read_config(directory)


def directory_tower(files: ModelFiles, path: Path) -> TowerParts:
    """Return the tower in a directory. Raises Unsupported without one, CheckpointError."""
    config = read_json_object(files, "config.json")
    if config is None:
        raise Unsupported(_FEATURE, f"{files.where('')} has no config.json, so it is loaded as a text model")
    processor = _processor_values(files)
    return TowerParts(config, processor, TowerCheckpoint(path))


def _processor_values(files: ModelFiles) -> Mapping[str, Any]:
    """Return the configuration of the image processor, from either file. Raises Unsupported without one."""
    values = read_json_object(files, PREPROCESSOR)
    if values is None:
        values = (read_json_object(files, PROCESSOR) or {}).get("image_processor")
    if not isinstance(values, Mapping):
        raise Unsupported(_FEATURE, f"the model has neither {PREPROCESSOR} nor a {PROCESSOR} with an image_processor")
    return values
