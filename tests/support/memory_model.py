"""A model in memory, without a directory: the least that a new format has to implement."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.sources.checkpoint import Checkpoint, TensorStore
from ferrum.sources.model_source import DirectoryModel, ModelSource
from ferrum.sources.tensor_file import TensorInfo

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class MemoryModel(TensorStore, ModelSource):
    """A model of given tensors and files, some of which it may make from other values when they are read."""

    path = None

    def __init__(
        self, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], files: Mapping[str, bytes]
    ) -> None:
        self.name, self.directory, self.headless = "in memory", Path("in memory"), False
        self.config = dict(config)
        self.tensors = {
            name: TensorInfo(DTYPES[each.dtype.name], each.shape, 0, each.nbytes) for name, each in tensors.items()
        }
        self._values, self._files = tensors, files

    def checkpoint(self) -> TensorStore:
        return self

    def read(self, name: str) -> NDArray[Any]:
        return self._values[name]

    def digest(self, memory: Path) -> str:
        return hashlib.sha256(json.dumps(self.config).encode()).hexdigest()

    def read_file(self, name: str) -> bytes | None:
        return json.dumps(self.config).encode() if name == "config.json" else self._files.get(name)

    def file_names(self, folder: str = "") -> list[str]:
        paths = [Path(name) for name in ("config.json", *self._files)]
        return sorted(path.name for path in paths if path.parent == Path(folder))


def in_memory(directory: Path, **files: str) -> MemoryModel:
    """Return a copy of a directory's model, with further files (`chat_template__jinja="..."`)."""
    source, checkpoint = DirectoryModel(directory), Checkpoint(directory)
    tensors = {name: np.array(checkpoint.read(name)) for name in checkpoint.tensors}
    kept = [name for name in source.file_names() if name.startswith(("tokenizer", "generation"))]
    texts = {name.replace("__", "."): text.encode() for name, text in files.items()}
    return MemoryModel(checkpoint.config, tensors, {name: source.read_file(name) or b"" for name in kept} | texts)
