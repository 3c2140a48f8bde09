"""A model's directory in the Hugging Face layout: `config.json` and one or several safetensors files.

The formats of tensors in a file are in `tensor_file.py`, their conversion to weights in `parameters.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError
from ferrum.kernels.operations import Int32
from ferrum.models.families import head_is_tied
from ferrum.models.tensor_names import EMBEDDING, HEAD
from ferrum.quant.block_weight import BlockWeight
from ferrum.sources.tensor_file import TensorFile, TensorInfo
from ferrum.text.model_files import DirectoryFiles, ModelFiles, read_json_object
from ferrum.text.text_config import is_wrapped, text_config

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
_PREFIX: Final = "model."
TEXT_PREFIXES: Final = (
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
"""Prefixes of a text model inside another one, and those that it has by itself."""

_TOWERS: Final = frozenset(
    (
        *("vision_tower", "vision_model", "visual", "vision_embedder", "embed_vision"),
        *("audio_tower", "embed_audio", "multi_modal_projector", "mm_projector", "image_newline", "connector"),
    )
)
"""The parts of a model that see and hear, and that bring what they found to the text model."""

_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt")


class TensorStore(Protocol):
    """A source of a model's tensors.

    Attributes:
        directory: the model's directory or file, for messages.
        config: the values of its `config.json`.
        tensors: its tensors, by name.
        headless: whether it was saved without a head, by a class that has none.
        nbytes: bytes of all tensors.
    """

    directory: Path
    config: dict[str, Any]
    tensors: dict[str, TensorInfo]
    headless: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def mapped(self) -> int:
        """Bytes of matrices that are used where they are in the file: all in a packed directory, else none."""
        return self.nbytes if quantization_method(self.config) == PACKED else 0

    @property
    def final(self) -> bool:
        """Whether each tensor is a parameter in its last form, whatever views its family reads other checkpoints by."""
        return self.mapped > 0

    def in_its_words(self, problem: str) -> str:
        """Return a message about a field of the configuration as this kind of file names the field."""
        return problem

    def file_of(self, name: str) -> str:
        """Return the name of the file that holds a tensor, for messages."""
        return f"{self.directory} ({name})"

    def read(self, name: str) -> NDArray[Any]:
        """Return the tensor of that name, in a dtype of `quant.dense.FORMATS`.

        It may be a read-only view of a mapped file.
        """

    def read_whole(self, name: str) -> NDArray[Any]:
        """Return a tensor whole, where `read` gives the part of a rank."""
        return self.read(name)

    def block_format(self, name: str) -> str | None:  # noqa: ARG002 - stores of quantised matrices override this
        """Return the format of `BLOCK_FORMATS` that holds a matrix's numbers exactly, or None."""
        return None

    def blocks(self, name: str) -> BlockWeight:
        """Return a matrix that has a `block_format`, in that format. Its columns may have an `order`."""
        raise AssertionError(f"{name} has no block format")

    def order(self, name: str) -> Int32 | None:  # noqa: ARG002 - stores of quantised matrices override this
        """Return the order of inputs of a matrix that has a `block_format`, as `OrderedWeight.order`, or None."""
        return None

    def forget(self, name: str) -> None:  # noqa: ARG002 - stores that hold memory override this
        """Free the memory of a tensor's pages, if it takes any; the tensor can be read again."""
        return


Names = Callable[[Collection[str], Mapping[str, Any]], dict[str, str]]
"""From the names of tensors in files and a configuration to each tensor's name and that in its file."""


class Checkpoint(TensorStore):
    """A directory of model files, mapped; tensors are read when used.

    Embedding models are saved without a head, and their tensor names lack the whole model's prefix: it is added. If
    head and embedding are one matrix, the files may hold either. A model that also sees or hears gives its text model.

    Args:
        directory: of the files.
        names: chooses tensors, and names them; None: those of the text model.

    Attributes: see `TensorStore`.

    Raises:
        CheckpointError: a file is missing, damaged, or contradicts another; the message names file and tensor.
    """

    def __init__(self, directory: Path, names: Names | None = None) -> None:
        if not directory.is_dir():
            raise CheckpointError(f"{directory}: is not a directory")
        self.directory = directory
        config = read_config(directory)
        self.config = text_config(config)
        files = _open_files(directory)
        self._places = {full: (files[name], name) for full, name in (names or whole_names)(files, config).items()}
        self.tensors: dict[str, TensorInfo] = {full: file.tensors[own] for full, (file, own) in self._places.items()}
        self.headless = is_headless(files)

    def file_of(self, name: str) -> str:
        return self._places[name][0].path.name

    def read(self, name: str) -> NDArray[Any]:
        file, own = self._places[name]
        return file.read(own)

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """Return a tensor's bytes; see `TensorFile.read_bytes`."""
        file, own = self._places[name]
        return file.read_bytes(own)

    def forget(self, name: str) -> None:
        file, own = self._places[name]
        file.forget(own)


def whole_names(names: Collection[str], config: Mapping[str, Any]) -> dict[str, str]:
    """Return each tensor's name in the whole model, and its name in these files.

    A text model inside of another one has names under `language_model`, and the parts that see and hear are left out.
    If the head is tied to the embedding, `safetensors` and the hub's library write one matrix, under the alphabetically
    first of the two names: the head's.
    """
    own = _text_names(names) if is_wrapped(config) else {name: name for name in names}
    prefix = _PREFIX if _lack_prefix(own) else ""
    whole = {name if name == HEAD else prefix + name: held for name, held in own.items()}
    if HEAD in whole and EMBEDDING not in whole and head_is_tied(config):
        whole[EMBEDDING] = whole.pop(HEAD)
    return whole


def _text_names(names: Collection[str]) -> dict[str, str]:
    """Return the tensors of the text model by their names in it, with those in the files."""
    own: dict[str, str] = {}
    for name in names:
        if name.removeprefix(_PREFIX).partition(".")[0] in _TOWERS:
            continue
        text = next((ours + name.removeprefix(held) for held, ours in TEXT_PREFIXES if name.startswith(held)), name)
        if text in own:
            raise CheckpointError(f"tensors {own[text]!r} and {name!r} are both {text!r} of the text model")
        own[text] = name
    return own


def tower_names(names: Collection[str], config: Mapping[str, Any]) -> dict[str, str]:  # noqa: ARG001 - see `Names`
    """Return the tensors of the parts that see and hear, by their names without the prefix of the whole model.

    Published towers of SigLIP are a part of `vision_tower`; `transformers` 5 saves them without that.
    """
    own = {name.removeprefix(_PREFIX).replace("vision_tower.vision_model.", "vision_tower.", 1): name for name in names}
    return {name: held for name, held in own.items() if name.partition(".")[0] in _TOWERS}


def is_headless(names: Collection[str]) -> bool:
    """Whether tensors of these names were saved without a head, by a class that has none.

    With the prefix and without a head, a tensor is missing instead.
    """
    return _lack_prefix(names) and HEAD not in names


def _lack_prefix(names: Collection[str]) -> bool:
    return EMBEDDING not in names and EMBEDDING.removeprefix(_PREFIX) in names


def read_config(directory: Path) -> dict[str, Any]:
    """Return the object in a model directory's `config.json`, with a `quantization_config` that is in another file.

    Raises:
        CheckpointError: missing, too large, unreadable, or not a JSON object.
    """
    return with_quantization(_read_object(directory / "config.json"), DirectoryFiles(directory))


def has_weights(directory: Path) -> bool:
    """Whether all weight files of a model exist; their content is not checked."""
    if (directory / SINGLE).exists():
        return True
    try:
        return not _missing(directory, shard_map(directory / INDEX))
    except CheckpointError:
        return False


def _read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file that must exist. Raises CheckpointError."""
    value = read_json_object(DirectoryFiles(path.parent), path.name)
    if value is None:
        raise CheckpointError(f"{path}: there is no such file; is {path.parent} a model's directory?")
    return value


def _open_files(directory: Path) -> dict[str, TensorFile]:
    """Return the file of each tensor, by the tensor's name. If both layouts exist, the single file is used."""
    if (directory / SINGLE).exists():
        file = TensorFile(directory / SINGLE)
        return dict.fromkeys(file.tensors, file)
    if (directory / INDEX).exists():
        return _open_shards(directory)
    pickled = sorted(path.name for path in directory.iterdir() if path.suffix in _PICKLES)
    if pickled:
        raise CheckpointError(
            f"{directory}: has only pickled weights ({pickled[0]}), which can run any code when opened; load them "
            f"once with transformers and save them again with save_pretrained, which writes {SINGLE}"
        )
    raise CheckpointError(f"{directory}: has neither {SINGLE} nor {INDEX}")


def _open_shards(directory: Path) -> dict[str, TensorFile]:
    index = directory / INDEX
    weight_map = shard_map(index)
    shards = sorted(set(weight_map.values()))
    if missing := _missing(directory, weight_map):
        raise CheckpointError(f"{directory}: {listed(missing)} of {len(shards)} files named in {INDEX} are missing")
    files: dict[str, TensorFile] = {}
    for shard in shards:
        file = TensorFile(directory / shard)
        for name in file.tensors:
            if name in files:
                raise CheckpointError(f"{file.path}: tensor {name!r} is also in {files[name].path.name}")
            if weight_map.get(name) != shard:
                raise CheckpointError(f"{index}: names {weight_map.get(name)} for tensor {name!r}, which is in {shard}")
            files[name] = file
    absent = [name for name in weight_map if name not in files]
    if absent:
        raise CheckpointError(f"{index}: names tensors that are not in their file: {listed(absent)}")
    return files


def _missing(directory: Path, weight_map: Mapping[str, str]) -> list[str]:
    """Return the shards that are not there."""
    return [shard for shard in sorted(set(weight_map.values())) if not (directory / shard).is_file()]


def shard_map(index: Path) -> Mapping[str, str]:
    """Return tensor name to shard name; a shard is a file in the same directory, never a path."""
    weight_map = _read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map must map tensor names to file names")
    for name, shard in weight_map.items():
        plain = isinstance(shard, str) and shard.endswith(".safetensors") and shard.isprintable()
        if not plain or "/" in shard or "\\" in shard or len(shard.encode()) > 255:
            raise CheckpointError(
                f"{index}: tensor {name!r} must be in a .safetensors file of the same directory, not {shard!r}"
            )
    return weight_map


def listed(names: list[str], most: int = 3) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


# ---- The `quantization_config` of a directory: that of `config.json`, or of the file in which a quantiser left it ----

KEY: Final = "quantization_config"

_OLDER: Final = "compression_config"
"""What the first versions of compressed-tensors called it."""


def _model_optimizer(values: Mapping[str, Any]) -> dict[str, Any]:
    section = values.get("quantization")
    return {"quant_method": "modelopt", **(section if isinstance(section, dict) else {})}


MLX: Final = "MLX"
"""The method of MLX, whose directories have no name of one."""

PACKED: Final = "ferrum"
"""The method of packed directories (`packed.py`)."""

FILES: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "hf_quant_config.json": _model_optimizer,
    "quantize_config.json": lambda values: {"quant_method": "gptq", **values},
    "quant_config.json": lambda values: {"quant_method": "awq", **values},
}
"""Files of Model Optimizer, AutoGPTQ and AutoAWQ, and the `quantization_config` that their values mean."""


def with_quantization(config: dict[str, Any], files: ModelFiles) -> dict[str, Any]:
    """Return a model's configuration with its `quantization_config`, wherever it is.

    Raises:
        CheckpointError: a file of `FILES` is damaged.
    """
    found, method = config.get(KEY) or config.get("quantization"), quantization_method(config)
    if isinstance(found, dict) and method in (MLX, "bitsandbytes"):
        return {**config, KEY: {**found, "quant_method": method}}
    if config.get(KEY):
        return config
    if config.get(_OLDER):
        return {name: value for name, value in config.items() if name != _OLDER} | {KEY: config[_OLDER]}
    for name, meaning in FILES.items():
        values = read_json_object(files, name)
        if values is not None:
            return {**config, KEY: meaning(values)}
    return config


def quantization_method(config: Mapping[str, Any]) -> str | None:
    """Return the quantisation method in a model's `config.json`, or None.

    bitsandbytes had no name of a method at first.
    """
    quantization = config.get("quantization_config") or config.get("quantization")
    if not quantization:
        return None
    if not isinstance(quantization, dict):
        return str(quantization)
    if named := quantization.get("quant_method"):
        return str(named)
    if "load_in_8bit" in quantization or "load_in_4bit" in quantization:
        return "bitsandbytes"
    return MLX if {"group_size", "bits"} <= quantization.keys() else "unnamed method"
