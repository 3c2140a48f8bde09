"""From a model's name to its `ModelSource`. It chooses the class; `hub.py` finds the place."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ferrum.core.errors import CheckpointError, HubUnreachable
from ferrum.runtime.checkpoint import has_weights
from ferrum.runtime.hub import locate, resolve_model, snapshot
from ferrum.runtime.hub_gguf import SUFFIX, HubFile, fetch
from ferrum.runtime.model_source import DirectoryModel, ModelSource


def open_model(name: str, *, headers_only: bool = False) -> ModelSource:
    """Return the source of a model; a hub model is downloaded first.

    Args:
        name: see `resolve_model`.
        headers_only: of a hub model outside of the cache, fetch only the configuration and the tensors' shapes.

    Raises: as `resolve_model`, and as `Checkpoint` if headers are fetched.
    """
    found = locate(name) if headers_only else resolve_model(name)
    if isinstance(found, HubFile):
        found = fetch(found, offline=False)
    if not isinstance(found, Path):
        return _hub_headers(*found)
    if found.suffix == SUFFIX:
        from ferrum.runtime.gguf_model import GgufModel  # other models need none of it

        return GgufModel(found)
    return DirectoryModel(found)


def _hub_headers(repo: str, revision: str | None) -> ModelSource:
    """Return the source of a hub model to plan: its cached directory, or its headers."""
    from ferrum.runtime.packed import is_packed
    from ferrum.runtime.quantized_checkpoint import is_read
    from ferrum.runtime.remote_headers import fetch_headers

    with suppress(HubUnreachable, CheckpointError):
        cached = snapshot(repo, revision, offline=True)
        if has_weights(cached):
            return DirectoryModel(cached)
    headers = fetch_headers(repo, revision)
    # A quantised model can only be planned from the files themselves: its formats depend on scales and zero points.
    quantized = is_packed(headers) or is_read(headers.config)
    return DirectoryModel(snapshot(repo, revision, offline=False)) if quantized else headers
