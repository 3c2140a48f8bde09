"""`GgufTower`: a tower for images in GGUF files, in the one next to a text model's or in the text model's own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.models.gguf_projectors import (
    CLIP,
    Patches,
    Projector,
    TowerHeader,
    describe,
    embedded_projector,
    projector_of,
    tower_tensors,
)
from ferrum.sources.gguf_file import GgufFile, GgufTensor
from ferrum.sources.gguf_store import GgufStore, numbers_of, unpermuted
from ferrum.sources.tensor_file import FORMAT_OF, TensorInfo
from ferrum.sources.tower_checkpoint import TowerParts

_PERMUTED: Final = re.compile(r"\.[qk]_proj\.")


class GgufTower(GgufStore):
    """The tensors of a tower under their names in a directory, without the prefix `model.`.

    Args:
        path: the model or the file of the projector, for messages.
        shards: the files.
        projector: what such files hold.
        prefix: the architecture of the files.
        text: the `config.json` of the text model.

    Attributes:
        processor: the configuration of the image processor. For others see `TensorStore`.

    Raises:
        CheckpointError: a key is missing or invalid.
        Unsupported: a key or a tensor is not understood.
    """

    def __init__(
        self, path: Path, shards: Sequence[GgufFile], projector: Projector, prefix: str, text: Mapping[str, Any]
    ) -> None:
        values = {
            key.removeprefix(f"{prefix}."): value
            for key, value in shards[0].metadata.items()
            if key.startswith(f"{prefix}.")
        }
        places = {name: shard for shard in shards for name in shard.tensors}
        shapes = {name: shard.tensors[name].shape for name, shard in places.items()}
        header = TowerHeader(str(path), prefix, values, shapes, text)
        found = describe(projector, header)
        names = tower_tensors(projector, header)
        super().__init__(
            path, found.config, {full: (places[name], name) for full, name in names.items()}, lambda _, shape: shape
        )
        self.processor = found.processor
        self._permuted, self._raised = projector.permuted, projector.raised
        self._patches = projector.patches
        self._files = {name: places[name] for patches in self._patches.values() for name in patches.sources}
        for full, patches in self._patches.items():
            self.tensors[full] = _info([self._files[name].tensors[name] for name in patches.sources])
        self._heads = dict.fromkeys(
            ("num_attention_heads", "num_key_value_heads"), header.integer("vision.attention.head_count")
        )

    def row_order(self, name: str, count: int) -> NDArray[np.int64] | None:
        permuted = self._permuted and _PERMUTED.search(name)
        return unpermuted(name, count, self._heads) if permuted else None

    def read(self, name: str) -> NDArray[Any]:
        if name in self._patches:
            return self._patch_embedding(self._patches[name]).reshape(self.tensors[name].shape)
        numbers = super().read(name)
        return numbers.astype(np.float32) - np.float32(1) if name in self._raised else numbers

    def _patch_embedding(self, patches: Patches) -> NDArray[Any]:
        """Return a patch embedding in the order of a directory."""
        files = ((self._files[name], name) for name in patches.sources)
        parts = [numbers_of(file.tensors[name], file.blocks(name)) for file, name in files]
        alike = len({part.dtype for part in parts}) == 1
        joined = np.stack(parts if alike else [part.astype(np.float32) for part in parts], axis=2)
        return np.ascontiguousarray(np.moveaxis(joined, 1, -1) if patches.by_pixel else joined)

    def block_format(self, name: str) -> str | None:
        return None if name in self._patches else super().block_format(name)

    def forget(self, name: str) -> None:
        if name not in self._patches:
            super().forget(name)
            return
        for own in self._patches[name].sources:
            self._files[own].forget(own)

    @property
    def parts(self) -> TowerParts:
        """The tower as it is read from any source."""
        return TowerParts(self.config, self.processor, self)


def _info(tensors: Sequence[GgufTensor]) -> TensorInfo:
    """Return what a matrix of several tensors is: float32, unless all are floats of one type."""
    kinds = {each.kind for each in tensors}
    kind = kinds.pop() if len(kinds) == 1 else ""
    shape = tensors[0].shape[0], sum(math.prod(each.shape[1:]) for each in tensors)
    return TensorInfo(kind if kind in FORMAT_OF else "F32", shape, 0, sum(each.end - each.begin for each in tensors))


def projector_tower(path: Path, text: Mapping[str, Any]) -> TowerParts:
    """Return the tower in a file next to that of a text model. Errors as `GgufFile`, `projector_of`, `GgufTower`."""
    file = GgufFile(path)
    return GgufTower(path, [file], projector_of(str(path), file.metadata), CLIP, text).parts


def embedded_tower(path: Path, shards: Sequence[GgufFile], text: Mapping[str, Any]) -> TowerParts | None:
    """Return the tower in the file of a text model, or None. Errors as `GgufTower`."""
    metadata = shards[0].metadata
    projector = embedded_projector(metadata, [name for shard in shards for name in shard.tensors])
    if projector is None:
        return None
    return GgufTower(path, shards, projector, str(metadata["general.architecture"]), text).parts
