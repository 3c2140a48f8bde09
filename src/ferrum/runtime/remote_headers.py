"""A hub model's configuration, tensor names and shapes without its tensors: all that a memory plan needs.

Downloads of whole models are in `hub.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import index
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError, HubUnreachable, Unsupported
from ferrum.runtime.checkpoint import (
    INDEX,
    SINGLE,
    Checkpoint,
    TensorStore,
    has_weights,
    is_headless,
    read_config,
    shard_map,
    whole_names,
)
from ferrum.runtime.hub import NO_CONFIG, NO_WEIGHTS, hub_errors, locate, resolve_model, snapshot
from ferrum.runtime.packed import is_packed
from ferrum.runtime.tensor_file import TensorInfo

if TYPE_CHECKING:
    from huggingface_hub import HfApi


class RemoteHeaders(TensorStore):
    """A `TensorStore` of a model on the hub: it knows the tensors' shapes and cannot read them.

    Attributes: see `TensorStore`.
    """

    def __init__(self, name: str, config: dict[str, Any], tensors: dict[str, TensorInfo]) -> None:
        self.directory = Path(name)
        self.config = config
        self.tensors = {full: tensors[own] for full, own in whole_names(tensors, config).items()}
        self.headless = is_headless(tensors)

    def read(self, name: str) -> NDArray[Any]:
        """Refuse the tensor's dtype: a plan reads a tensor only if the dtype is unknown. Raises Unsupported."""
        raise Unsupported(f"dtype {self.tensors[name].dtype}", f"{self.directory}: tensor {name!r}")


def open_for_planning(name: str) -> TensorStore:
    """Return the store of a model to plan. Of a hub model outside of the cache, only the files' headers are fetched.

    Raises: as `resolve_model` and `Checkpoint`.
    """
    found = locate(name)
    if isinstance(found, Path):
        return Checkpoint(found)
    cached = None
    with suppress(HubUnreachable, CheckpointError):
        cached = snapshot(*found, offline=True)
    if cached is not None and has_weights(cached):
        return Checkpoint(cached)
    listing = _fetch_headers(*found)
    # A packed model can only be planned from the files themselves.
    return Checkpoint(resolve_model(name)) if is_packed(listing) else listing


def _fetch_headers(repo: str, revision: str | None) -> RemoteHeaders:
    """Return the headers from the hub."""
    from huggingface_hub import HfApi

    api = HfApi()
    with hub_errors(repo, revision) as named, TemporaryDirectory() as folder:

        def fetch(file: str) -> Path:
            return Path(api.hf_hub_download(repo, file, revision=revision, local_dir=folder))

        try:
            with _missing_as(NO_CONFIG):
                config = read_config(fetch("config.json").parent)
            if api.file_exists(repo, SINGLE, revision=revision):
                files = [SINGLE]
            else:
                with _missing_as(NO_WEIGHTS):
                    files = sorted(set(shard_map(fetch(INDEX)).values()))
            tensors = {}
            for file in files:
                with _missing_as(f"lacks {file}, which {INDEX} names"):
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


@contextmanager
def _missing_as(problem: str) -> Iterator[None]:
    """Raise CheckpointError for a file that the repository lacks."""
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        yield
    except LocalEntryNotFoundError:
        raise
    except EntryNotFoundError as error:
        raise CheckpointError(problem) from error
