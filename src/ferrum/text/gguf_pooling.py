"""The pooling that a GGUF file names, as the files of `sentence-transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import CheckpointError

FOLDER: Final = "1_Pooling"

_MODES: Final = {0: None, 1: "mean", 2: "cls", 3: "lasttoken", 4: "rank"}
"""Modes by their numbers in `pooling_type`; 0 is none."""


def modules(metadata: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the content of a `modules.json`, or None if the file names no pooling. Raises CheckpointError."""
    types = {"": "Transformer", FOLDER: "Pooling"}
    return None if _mode(metadata) is None else [{"path": path, "type": kind} for path, kind in types.items()]


def pooling_config(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of the `config.json` of that module, or None. Raises CheckpointError."""
    mode = _mode(metadata)
    return None if mode is None else {"pooling_mode": mode}


def _mode(metadata: Mapping[str, Any]) -> str | None:
    key = f"{metadata.get('general.architecture')}.pooling_type"
    number = metadata.get(key, 0)
    if not isinstance(number, int) or number not in _MODES:
        raise CheckpointError(f"GGUF metadata {key} must be one of {', '.join(map(str, _MODES))}, not {number!r}")
    return _MODES[number]
