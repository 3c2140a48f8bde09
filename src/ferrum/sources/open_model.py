"""From a model's name to its `ModelSource`. It chooses the class; `hub.py` finds the place."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ferrum.core.errors import CheckpointError, ConfigError, HubUnreachable, ModelNotFound
from ferrum.core.option_fields import path_of
from ferrum.sources.checkpoint import has_weights
from ferrum.sources.gguf_choice import gguf_below, names_in, projector_for
from ferrum.sources.gguf_file import is_projector, other_kind
from ferrum.sources.hub import fetched, locate, preferred_gguf, snapshot
from ferrum.sources.hub_cache import place_of
from ferrum.sources.hub_files import HubName
from ferrum.sources.model_folders import projector_blob
from ferrum.sources.model_source import DirectoryModel, ModelSource
from ferrum.sources.readable_files import entries_of, is_file

NO_PROJECTOR: Final = "none"
"""The value of `mmproj` that takes no tower for images."""


def open_model(
    name: str, *, headers_only: bool = False, models_dir: str | None = None, mmproj: str | None = None
) -> ModelSource:
    """Return the source of a model; a hub model is downloaded first.

    Args:
        name, models_dir: see `locate`.
        mmproj: file of a GGUF model's tower for images, or `NO_PROJECTOR` for a model without its tower; None takes the
            one that belongs to the model, see `projector_for`.
        headers_only: of a hub model outside of the cache, fetch only the configuration and the tensors' shapes.

    Raises: as `resolve_model`, and as `Checkpoint` if headers are fetched.
        ConfigError: `mmproj` is no file of a projector, or names one for a directory.
    """
    found = locate(name, models_dir=models_dir)
    if isinstance(found, HubName):
        found = replace(found, projector=mmproj is None)
    if headers_only and isinstance(found, HubName) and found.whole:
        return _hub_headers(found, mmproj)
    return _source(fetched(found), mmproj)


def _source(path: Path, mmproj: str | None) -> ModelSource:
    """Return the source of a directory or GGUF file. Raises ModelNotFound for a file that is no model, ConfigError."""
    if path.is_dir():
        if mmproj not in (None, NO_PROJECTOR):
            raise ConfigError(f"is for GGUF files, and {path} is a directory: it holds its own tower", param="mmproj")
        return DirectoryModel(path, sees=mmproj is None)
    from ferrum.sources.gguf_model import GgufModel  # other models need none of it

    kind = other_kind(path)
    if kind is not None:
        models = list(names_in(str(path.parent), [each.name for each in entries_of(path.parent)]))
        step = f"; did you mean {' or '.join(models[:3])}?" if models else ": name the file of the model"
        raise ModelNotFound(f"{path} is {kind}, not a model{step}", param="model")
    return GgufModel(path, _projector(path, mmproj), sees=mmproj != NO_PROJECTOR)


def _projector(model: Path, mmproj: str | None) -> Path | None:
    """Return the file of the tower of a GGUF model, or None. Raises ConfigError for another file."""
    if mmproj == NO_PROJECTOR:
        return None
    if mmproj is None and (blob := projector_blob(model)) is not None:
        return blob
    if mmproj is None:
        place = place_of(model)
        depth = len(model.relative_to(place).parts) - 1
        found = projector_for(model.relative_to(place).as_posix(), gguf_below(place, depth))
        return None if found is None else place / found
    path = path_of("mmproj", mmproj)
    if not is_file(path):
        raise ConfigError(f"there is no file {path}: name a file of a projector, or none", param="mmproj")
    if not is_projector(path):
        raise ConfigError(f"{path} is no GGUF file of a projector: name another, or none", param="mmproj")
    return path


def _hub_headers(name: HubName, mmproj: str | None) -> ModelSource:
    """Return the source of a hub model to plan: its cached files, or its headers."""
    from ferrum.sources.quantized_checkpoint import is_read
    from ferrum.sources.remote_headers import fetch_headers

    with suppress(HubUnreachable, CheckpointError):
        cached = snapshot(name, offline=True)
        if cached.is_file() or has_weights(cached):
            return _source(cached, mmproj)
    try:
        headers = fetch_headers(name.repo, name.revision)
    except CheckpointError:
        file = preferred_gguf(name, offline=False)
        if file is None:
            raise
        return _source(file, mmproj)
    # A quantised model can only be planned from the files themselves: its formats depend on scales and zero points.
    quantized = bool(headers.mapped) or is_read(headers.config)
    if quantized:
        return _source(snapshot(name, offline=False), mmproj)
    if mmproj not in (None, NO_PROJECTOR):
        raise ConfigError(f"is for GGUF files, and {name.text} has safetensors weights", param="mmproj")
    return headers
