"""`TowerCheckpoint`: the tensors of a model's tower, which `Checkpoint` leaves out, from the same directory."""

from __future__ import annotations

from pathlib import Path

from ferrum.sources.checkpoint import Checkpoint, read_config, tower_names


class TowerCheckpoint(Checkpoint):
    """The tower of a directory: tensors without the prefix `model.`, and the configuration of the whole.

    Raises: as `Checkpoint`.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, names=tower_names)
        self.config = read_config(directory)
