"""`GgufModel`: a GGUF file as the source of a model. Its metadata answers for the small files of a directory.

The file's own formats are in `gguf_file.py` and `quant/gguf_blocks.py`, the names of its tensors and metadata in
`models/gguf_architecture.py` and `gguf_keys.py`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.core.logging import info_once
from ferrum.models.gguf_architecture import ROPE_FACTORS, TOWER_TENSORS, hf_name, hf_shape, is_permuted, layer_of
from ferrum.models.gguf_keys import architecture_of, hf_config, key_of
from ferrum.models.tensor_names import Runs, View
from ferrum.quant.block_weight import FileWeight
from ferrum.quant.dense import FORMATS, by_rows
from ferrum.quant.gguf_blocks import GGUF_TYPES, GgufWeight, dequantize, weight_of
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.gguf_file import GgufFile, GgufTensor, open_shards
from ferrum.sources.model_source import ModelSource
from ferrum.sources.tensor_file import FORMAT_OF, TensorInfo
from ferrum.sources.viewed_tensors import ViewedTensors

_FIELD: Final = re.compile(r"config\.json: (\w+)")
"""A field of the configuration in a message."""

_EMBEDDING: Final = "token_embd.weight"
_GATE_UP: Final = ".experts.gate_up_proj.weight"

_NORM: Final = re.compile(r"layernorm\.weight$|^model\.norm\.weight$")


class GgufTensors(TensorStore):
    """The tensors of a GGUF model under their names in the Hugging Face layout.

    Floats are views of the mapped file. Other types are dequantised to float32 when read, with exactly the numbers of
    the file. Rows that the converter has permuted are put back.

    Args:
        path: of the file, or of one part of a split model.
        shards: the parts, if they are open.

    Attributes: see `TensorStore`.

    Raises:
        CheckpointError: the file is damaged, or lacks what the architecture needs.
        Unsupported: a type, an architecture or a metadata key that is not understood.
    """

    def __init__(self, path: Path, shards: Sequence[GgufFile] | None = None) -> None:
        self.directory = path
        self.headless = False
        shards = shards or open_shards(path)
        self.metadata = shards[0].metadata
        places = [(shard, name) for shard in shards for name in shard.tensors]
        names = {name for _, name in places}
        self._architecture = architecture_of(self.metadata, names)[1]
        embedding = next((shard.tensors[name] for shard, name in places if name == _EMBEDDING), None)
        if embedding is None:
            raise CheckpointError(f"{path}: has no tensor {_EMBEDDING}; is it a whole model?")
        factors = {name: _numbers(shard, name) for shard, name in places if name in ROPE_FACTORS}
        config = hf_config(self.metadata, names, embedding.shape[0], factors)
        self.config = {**config, **_special_ids(self.metadata)}
        self._places: dict[str, tuple[GgufFile, str]] = {}
        further: Counter[int] = Counter()  # layers after the last one predict further tokens
        for shard, name in places:
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
            if full in self._places:
                raise CheckpointError(f"{shard.path}: tensor {name!r} is repeated")
            self._places[full] = shard, name
        self.tensors = {full: _info(full, shard.tensors[name]) for full, (shard, name) in self._places.items()}
        for layer, count in further.items():
            info_once(f"{path}: {count} tensors blk.{layer}.* are left out: they predict further tokens")
        if self._architecture.shifted is not None:
            self.config[self._architecture.shifted] = self._norm_offset()

    def in_its_words(self, problem: str) -> str:
        return _FIELD.sub(lambda found: key_of(found[1], self.metadata, self._architecture), problem)

    def file_of(self, name: str) -> str:
        shard, own = self._places[name]
        return f"{shard.path.name} ({own})"

    def file_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor in the file."""
        shard, own = self._places[name]
        return shard.tensors[own].shape

    def _norm_offset(self) -> int:
        """Return what the model adds to the weights of norms: 1 if those of the file are 0 on average, not 1."""
        means = [float(np.mean(self.read(name), dtype=np.float64)) for name in self.tensors if _NORM.search(name)]
        return int(sum(means) < len(means) / 2)

    def read(self, name: str) -> NDArray[Any]:
        numbers = self._read(name)
        own = self._places[name][1]
        if own.rpartition(".")[2] in self._architecture.decays and not (numbers <= 0).all():
            reason = "has positive numbers or some that are none, and must have -exp(A_log)"
            raise CheckpointError(f"{self._places[name][0].path}: tensor {own!r} {reason}")
        return numbers

    def _read(self, name: str) -> NDArray[Any]:
        tensor, blocks = self._blocks(name)
        if tensor.kind in FORMAT_OF:
            floats: NDArray[Any] = np.ascontiguousarray(blocks).view(FORMATS[FORMAT_OF[tensor.kind]])
            return floats.reshape(self.tensors[name].shape)
        matrix = by_rows((len(blocks), tensor.shape[-1]), lambda rows: dequantize(tensor.kind, blocks[rows]))
        return matrix.reshape(self.tensors[name].shape)

    def block_format(self, name: str) -> str | None:
        shard, own = self._places[name]
        return GGUF_TYPES[shard.tensors[own].kind].format

    def blocks(self, name: str) -> FileWeight | GgufWeight:
        tensor, blocks = self._blocks(name)
        return weight_of(tensor.kind, blocks)

    def forget(self, name: str) -> None:
        shard, own = self._places[name]
        shard.forget(own)

    def _blocks(self, name: str) -> tuple[GgufTensor, NDArray[np.uint8]]:
        """Return a tensor and its blocks [rows, blocks, bytes], rows in the order of the Hugging Face layout."""
        shard, own = self._places[name]
        tensor, blocks = shard.tensors[own], shard.blocks(own)
        if self._architecture.permuted and is_permuted(name):
            count = math.prod(tensor.shape[:-1]) if len(tensor.shape) > 1 else tensor.shape[0]
            order = unpermuted(name, count, self.config)
            blocks = blocks[order] if len(tensor.shape) > 1 else blocks[:, order]
        return tensor, blocks


def unpermuted(name: str, count: int, config: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return which rows of a permuted tensor of q or k are those of the Hugging Face layout, in its order.

    Args:
        name, count: the tensor's name in that layout, and its rows.
        config: of the model.
    """
    heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
    return np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _is_repeated(name: str, names: Collection[str]) -> bool:
    """Whether a latent key and value matrix is in the file in its halves, too, as ik_llama.cpp writes it."""
    halves = [name.replace(".attn_kv_b.", f".attn_{half}_b.") for half in "kv"]
    return ".attn_kv_b." in name and set(halves) <= set(names)


def _info(name: str, tensor: GgufTensor) -> TensorInfo:
    """Return a tensor's place; other types than floats are read as float32."""
    kind = tensor.kind if tensor.kind in FORMAT_OF else "F32"
    return TensorInfo(kind, hf_shape(name, tensor.shape), tensor.begin, tensor.end)


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


def _special_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    from ferrum.text.gguf_tokenizer import special_ids

    return special_ids(metadata)


class GgufModel(ModelSource):
    """A GGUF file, or the first part of a split one.

    Args:
        path: the file.

    Attributes: see `ModelSource`.
    """

    path: Path

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self._changed = 0
        self._shards: Sequence[GgufFile] = ()
        self._small_files: dict[str, bytes | None] = {}

    def __reduce__(self) -> tuple[type[GgufModel], tuple[Path]]:
        return GgufModel, (self.path,)  # another process opens the file itself

    def checkpoint(self) -> TensorStore:
        return _split_experts(GgufTensors(self.path, self._opened()))

    def digest(self, memory: Path) -> str:
        from ferrum.sources.model_source import files_digest

        return files_digest([shard.path for shard in open_shards(self.path)], memory)

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
