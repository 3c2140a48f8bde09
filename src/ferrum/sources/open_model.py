"""From a model's name to its `ModelSource`. It chooses the class; `hub.py` finds the place."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ferrum.core.errors import CheckpointError, HubUnreachable, ModelNotFound
from ferrum.sources.checkpoint import has_weights
from ferrum.sources.gguf_choice import names_in
from ferrum.sources.gguf_file import other_kind
from ferrum.sources.hub import fetched, locate, preferred_gguf, snapshot
from ferrum.sources.hub_files import HubName
from ferrum.sources.model_source import DirectoryModel, ModelSource
from ferrum.sources.readable_files import entries_of


def open_model(name: str, *, headers_only: bool = False, models_dir: str | None = None) -> ModelSource:
    """Return the source of a model; a hub model is downloaded first.

    Args:
        name, models_dir: see `locate`.
        headers_only: of a hub model outside of the cache, fetch only the configuration and the tensors' shapes.

    Raises: as `resolve_model`, and as `Checkpoint` if headers are fetched.
    """
    found = locate(name, models_dir=models_dir)
    if headers_only and isinstance(found, HubName) and found.whole:
        return _hub_headers(found)
    return _source(fetched(found))


def _source(path: Path) -> ModelSource:
    """Return the source of a directory or GGUF file. Raises ModelNotFound for a file that is no model."""
    if path.is_dir():
        return DirectoryModel(path)
    from ferrum.sources.gguf_model import GgufModel  # other models need none of it

    kind = other_kind(path)
    if kind is not None:
        models = list(names_in(str(path.parent), [each.name for each in entries_of(path.parent)]))
        step = f"; did you mean {' or '.join(models[:3])}?" if models else ": name the file of the model"
        raise ModelNotFound(f"{path} is {kind}, not a model{step}", param="model")
    return GgufModel(path)


def _hub_headers(name: HubName) -> ModelSource:
    """Return the source of a hub model to plan: its cached files, or its headers."""
    from ferrum.sources.quantized_checkpoint import is_read
    from ferrum.sources.remote_headers import fetch_headers

    with suppress(HubUnreachable, CheckpointError):
        cached = snapshot(name, offline=True)
        if cached.is_file() or has_weights(cached):
            return _source(cached)
    try:
        headers = fetch_headers(name.repo, name.revision)
    except CheckpointError:
        file = preferred_gguf(name, offline=False)
        if file is None:
            raise
        return _source(file)
    # A quantised model can only be planned from the files themselves: its formats depend on scales and zero points.
    quantized = bool(headers.mapped) or is_read(headers.config)
    return _source(snapshot(name, offline=False)) if quantized else headers
