"""Readers for the text and JSON files of a checkpoint. Weights are read in `runtime`."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, Final, TypeVar

from ferrum.core.errors import CheckpointError

T = TypeVar("T")

MAX_BYTES: Final = 64 << 20
"""Largest file to read: a limit on memory for untrusted checkpoints."""

_POINTER: Final = b"version https://git-lfs.github.com/"


def read_text(path: Path) -> str | None:
    """Return the UTF-8 text of a file, or None if it does not exist.

    Raises:
        CheckpointError: the file is unreadable, too large, or not a regular file (a pipe would block).
    """
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode) or state.st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: must be a regular file of at most {MAX_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def refuse_pointer(path: Path) -> None:
    """Reject a Git LFS pointer in place of a file. Raises CheckpointError."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(_POINTER))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if begin == _POINTER:
        raise CheckpointError(f"{path}: is a Git LFS pointer, not the file; run `git lfs pull`")


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if it does not exist.

    Raises:
        CheckpointError: the file exists and is not a readable JSON object.
    """
    return _read_json(path, dict, "object")


def read_json_array(path: Path) -> list[Any] | None:
    """Return the JSON array in a file, or None. Errors as `read_json_object`."""
    return _read_json(path, list, "array")


def _read_json(path: Path, kind: type[T], name: str) -> T | None:
    text = read_text(path)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(value, kind):
        raise CheckpointError(f"{path}: must hold a JSON {name}, not {type(value).__name__}")
    return value
