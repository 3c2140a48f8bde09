"""A hub model's configuration, tensor names and shapes without its tensors: all that a memory plan needs.

Downloads of whole models are in `hub.py`.
"""

from __future__ import annotations

from operator import index
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.sources.checkpoint import (
    FILES,
    INDEX,
    SINGLE,
    TensorStore,
    is_headless,
    read_config,
    shard_map,
    whole_names,
)
from ferrum.sources.hub import NO_WEIGHTS
from ferrum.sources.hub_files import HubName, files_of, hub_errors
from ferrum.sources.loadable import NO_CONFIG
from ferrum.sources.model_source import ModelSource
from ferrum.sources.tensor_file import TensorInfo
from ferrum.text.text_config import text_config

if TYPE_CHECKING:
    from huggingface_hub import HfApi


class RemoteHeaders(TensorStore, ModelSource):
    """The source of a model on the hub for a plan: it knows the tensors' shapes and cannot read anything.

    Attributes: see `TensorStore` and `ModelSource`.
    """

    path = None

    def __init__(self, name: str, config: dict[str, Any], tensors: dict[str, TensorInfo]) -> None:
        self.name, self.directory = name, Path(name)
        self.config = text_config(config)
        self.tensors = {full: tensors[own] for full, own in whole_names(tensors, config).items()}
        self.headless = is_headless(tensors)

    def read(self, name: str) -> NDArray[Any]:
        """Refuse the tensor's dtype: a plan reads a tensor only if the dtype is unknown. Raises Unsupported."""
        raise Unsupported(f"dtype {self.tensors[name].dtype}", f"{self.directory}: tensor {name!r}")

    def checkpoint(self) -> TensorStore:
        return self

    def read_file(self, name: str) -> bytes | None:
        """Refuse to read a file: none was fetched. Raises Unsupported."""
        raise Unsupported(f"reading {name}", f"{self.name}: only its headers were fetched")

    def digest(self, memory: Path) -> str:  # noqa: ARG002 - there is nothing to remember
        """Refuse a digest: no file was fetched. Raises Unsupported."""
        raise Unsupported("a digest", f"{self.name}: only its headers were fetched")


def fetch_headers(repo: str, revision: str | None) -> RemoteHeaders:
    """Return the headers from the hub. Errors as `resolve_model` and `Checkpoint`."""
    from huggingface_hub import HfApi

    api = HfApi()
    with hub_errors(repo, revision) as named, TemporaryDirectory() as folder:

        def fetch(file: str) -> Path:
            return Path(api.hf_hub_download(repo, file, revision=revision, local_dir=folder))

        there = files_of(HubName(repo, revision=revision))
        try:
            if "config.json" not in there:
                raise CheckpointError(NO_CONFIG)
            for file in FILES.keys() & there:
                fetch(file)
            config = read_config(fetch("config.json").parent)
            if SINGLE not in there and INDEX not in there:
                raise CheckpointError(NO_WEIGHTS)
            files = [SINGLE] if SINGLE in there else sorted(set(shard_map(fetch(INDEX)).values()))
            tensors = {}
            for file in files:
                if file not in there:
                    raise CheckpointError(f"lacks {file}, which {INDEX} names")
                tensors.update(_header(api, repo, revision, file))
        except CheckpointError as error:
            problem = str(error)
            raise CheckpointError(
                problem.replace(folder, named) if folder in problem else f"{named!r} {problem}"
            ) from error
    return RemoteHeaders(named, config, tensors)


def _header(api: HfApi, repo: str, revision: str | None, file: str) -> dict[str, TensorInfo]:
    """Return the tensors of a weight file. Raises CheckpointError."""
    from huggingface_hub.errors import SafetensorsParsingError

    try:
        found = api.parse_safetensors_file_metadata(repo, file, revision=revision).tensors
        return {
            name: TensorInfo(str(info.dtype), tuple(map(index, info.shape)), *map(index, info.data_offsets))
            for name, info in found.items()
        }
    except (SafetensorsParsingError, AttributeError, TypeError) as error:
        raise CheckpointError(f"holds no valid safetensors file {file}: {error}") from error
