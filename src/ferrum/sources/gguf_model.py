"""`GgufModel`: a GGUF file as the source of a model. Its metadata answers for the small files of a directory.

The file's own formats are in `gguf_file.py` and `quant/gguf_blocks.py`, the names of its tensors and metadata in
`models/gguf_architecture.py` and `gguf_keys.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.logging import info_once
from ferrum.models.gguf_architecture import ROPE_FACTORS, TOWER_TENSORS, hf_name, hf_shape, is_permuted, layer_of
from ferrum.models.gguf_keys import architecture_of, hf_config, key_of
from ferrum.models.tensor_names import Runs, View
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.gguf_file import GgufFile, open_shards
from ferrum.sources.gguf_store import GgufStore, unpermuted
from ferrum.sources.model_source import ModelSource
from ferrum.sources.viewed_tensors import ViewedTensors

if TYPE_CHECKING:
    from ferrum.sources.tower_checkpoint import TowerParts

_FIELD: Final = re.compile(r"config\.json: (\w+)")
"""A field of the configuration in a message."""

_EMBEDDING: Final = "token_embd.weight"
_GATE_UP: Final = ".experts.gate_up_proj.weight"

_NORM: Final = re.compile(r"layernorm\.weight$|^model\.norm\.weight$")


class GgufTensors(GgufStore):
    """The tensors of a GGUF model under their names in the Hugging Face layout.

    Args:
        path: of the file, or of one part of a split model.
        shards: the parts, if they are open.

    Attributes: see `TensorStore`.

    Raises:
        CheckpointError: the file is damaged, or lacks what the architecture needs.
        Unsupported: a type, an architecture or a metadata key that is not understood.
    """

    def __init__(self, path: Path, shards: Sequence[GgufFile] | None = None) -> None:
        shards = shards or open_shards(path)
        self.metadata = shards[0].metadata
        listed = [(shard, name) for shard in shards for name in shard.tensors]
        names = {name for _, name in listed}
        self._architecture = architecture_of(self.metadata, names)[1]
        embedding = next((shard.tensors[name] for shard, name in listed if name == _EMBEDDING), None)
        if embedding is None:
            raise CheckpointError(f"{path}: has no tensor {_EMBEDDING}; is it a whole model?")
        factors = {name: _numbers(shard, name) for shard, name in listed if name in ROPE_FACTORS}
        config = hf_config(self.metadata, names, embedding.shape[0], factors)
        config |= _special_ids(self.metadata)
        places: dict[str, tuple[GgufFile, str]] = {}
        further: Counter[int] = Counter()  # layers after the last one predict further tokens
        for shard, name in listed:
            layer = layer_of(name)
            if name in factors or name.startswith(TOWER_TENSORS) or _is_repeated(name, names):
                continue
            if layer is not None and layer >= config["num_hidden_layers"]:
                further[layer] += 1
                continue
            full = hf_name(name, self._architecture)
            if full is None:
                own = f"files of architecture {self.metadata['general.architecture']}"
                raise Unsupported(f"{shard.path}: tensor {name!r}", f"no tensor of {own} is known by this name")
            if full in places:
                raise CheckpointError(f"{shard.path}: tensor {name!r} is repeated")
            places[full] = shard, name
        super().__init__(path, config, places, hf_shape)
        for layer, count in further.items():
            info_once(f"{path}: {count} tensors blk.{layer}.* are left out: they predict further tokens")
        if self._architecture.shifted is not None:
            self.config[self._architecture.shifted] = self._norm_offset()

    def in_its_words(self, problem: str) -> str:
        return _FIELD.sub(lambda found: key_of(found[1], self.metadata, self._architecture), problem)

    def _norm_offset(self) -> int:
        """Return what the model adds to the weights of norms: 1 if those of the file are 0 on average, not 1."""
        means = [float(np.mean(self.read(name), dtype=np.float64)) for name in self.tensors if _NORM.search(name)]
        return int(sum(means) < len(means) / 2)

    def read(self, name: str) -> NDArray[Any]:
        numbers = super().read(name)
        own = self._places[name][1]
        if own.rpartition(".")[2] in self._architecture.decays and not (numbers <= 0).all():
            reason = "has positive numbers or some that are none, and must have -exp(A_log)"
            raise CheckpointError(f"{self._places[name][0].path}: tensor {own!r} {reason}")
        return numbers

    def row_order(self, name: str, count: int) -> NDArray[np.int64] | None:
        permuted = self._architecture.permuted and is_permuted(name)
        return unpermuted(name, count, self.config) if permuted else None


def _is_repeated(name: str, names: Collection[str]) -> bool:
    """Whether a latent key and value matrix is in the file in its halves, too, as ik_llama.cpp writes it."""
    halves = [name.replace(".attn_kv_b.", f".attn_{half}_b.") for half in "kv"]
    return ".attn_kv_b." in name and set(halves) <= set(names)


def _numbers(shard: GgufFile, name: str) -> list[float]:
    """Return the numbers of a tensor of float32. Raises CheckpointError."""
    if shard.tensors[name].kind != "F32":
        raise CheckpointError(f"{shard.path}: tensor {name!r} must be of type F32, not {shard.tensors[name].kind}")
    numbers: list[float] = np.ascontiguousarray(shard.blocks(name)).view(np.float32).ravel().tolist()
    return numbers


def _split_experts(tensors: GgufTensors) -> TensorStore:
    """Return the tensors with gate and up of all experts apart, where a file has them in one."""
    views: dict[str, View] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name in tensors.tensors:
        shape = tensors.file_shape(name)
        if not name.endswith(_GATE_UP) or len(shape) != 3 or shape[1] % 2:
            continue
        experts, inner = shape[0], shape[1] // 2
        for index, part in enumerate(("gate_proj.weight", "up_proj.weight")):
            own = name.replace("gate_up_proj.weight", part)
            views[own] = View((name,), Runs(experts, 2 * inner, index * inner, inner))
            shapes[own] = experts * inner, shape[2]
    return ViewedTensors(tensors, views, shapes) if views else tensors


def _of_tower(shard: GgufFile) -> bool:
    """Whether a file holds tensors of a tower for images."""
    return any(name.startswith("v.") for name in shard.tensors)


def _special_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    from ferrum.text.gguf_tokenizer import special_ids

    return special_ids(metadata)


class GgufModel(ModelSource):
    """A GGUF file, or the first part of a split one.

    Args:
        path: the file.
        projector: the file of its tower for images, or None.
        sees: whether a tower in the file itself is read.

    Attributes: see `ModelSource`.
    """

    path: Path

    def __init__(self, path: Path, projector: Path | None = None, *, sees: bool = True) -> None:
        self.path = path
        self.name = str(path)
        self._projector, self._sees = projector, sees
        self._changed = 0
        self._shards: Sequence[GgufFile] = ()
        self._small_files: dict[str, bytes | None] = {}

    def __reduce__(self) -> tuple[partial[GgufModel], tuple[Path, Path | None]]:
        return partial(GgufModel, sees=self._sees), (self.path, self._projector)  # another process opens the file

    def checkpoint(self) -> TensorStore:
        return _split_experts(GgufTensors(self.path, self._opened()))

    def may_see(self) -> bool:
        return self._projector is not None or (self._sees and any(map(_of_tower, self._opened())))

    def tower(self) -> TowerParts:
        from ferrum.sources.gguf_tower import embedded_tower, projector_tower

        if not self.may_see():
            reason = f"{self.name} has no file of a projector (mmproj-*.gguf) next to it: name one with --mmproj FILE"
            none = f"{self.name} is loaded without its tower, because mmproj is none"
            raise Unsupported("images", reason if self._sees else none)
        text = GgufTensors(self.path, self._opened()).config
        if self._projector is not None:
            return projector_tower(self._projector, text)
        found = embedded_tower(self.path, self._opened(), text)
        if found is None:
            name = self._metadata().get("general.architecture")
            raise Unsupported(
                "images", f"the tower in files of architecture {name} is not read: use a projector's file"
            )
        return found

    def digest(self, memory: Path) -> str:
        from ferrum.sources.model_source import files_digest

        projector = [] if self._projector is None else [self._projector]
        return files_digest([*(shard.path for shard in open_shards(self.path)), *projector], memory)

    def read_file(self, name: str) -> bytes | None:
        """Return what the metadata says in the place of a small file."""
        from ferrum.text import gguf_tokenizer
        from ferrum.text.generation_config import gguf_generation_config
        from ferrum.text.pooling import GGUF_FOLDER, gguf_modules, gguf_pooling_config

        metadata = self._metadata()  # of a file that has changed, the small files are made again
        if name in self._small_files:
            return self._small_files[name]
        makers: dict[str, Callable[[Mapping[str, Any]], object]] = {
            "config.json": gguf_tokenizer.special_ids,
            "tokenizer.json": gguf_tokenizer.tokenizer_json,
            "tokenizer_config.json": gguf_tokenizer.tokenizer_config,
            "generation_config.json": gguf_generation_config,
            "modules.json": gguf_modules,
            f"{GGUF_FOLDER}/config.json": gguf_pooling_config,
        }
        value = makers[name](metadata) if name in makers else None
        content = None if value is None else gguf_tokenizer.as_json(value)
        if name != "tokenizer.json":  # it is large, and read once
            self._small_files[name] = content
        return content

    def file_names(self, folder: str = "") -> list[str]:
        from ferrum.text import gguf_tokenizer
        from ferrum.text.generation_config import gguf_generation_config
        from ferrum.text.pooling import GGUF_FOLDER, gguf_modules

        metadata = self._metadata()
        pooled = bool(gguf_modules(metadata))
        present = {
            "tokenizer.json": gguf_tokenizer.has_tokenizer(metadata),
            "tokenizer_config.json": True,
            "generation_config.json": bool(gguf_generation_config(metadata)),
            "modules.json": pooled,
        }
        if folder:
            return ["config.json"] if pooled and folder == GGUF_FOLDER else []
        return [name for name, held in present.items() if held]

    def _metadata(self) -> Mapping[str, Any]:
        return self._opened()[0].metadata

    def _opened(self) -> Sequence[GgufFile]:
        """Return the parts, read once; a changed file is read again."""
        changed = self.path.stat().st_mtime_ns
        if changed != self._changed:
            self._shards, self._small_files, self._changed = open_shards(self.path), {}, changed
        return self._shards

    def where(self, name: str) -> str:
        return f"{self.name} ({name})" if name else self.name
