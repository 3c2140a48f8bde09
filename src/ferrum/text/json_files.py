"""Reading the files that lie beside a checkpoint's weights."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, Final, TypeVar

from ferrum.core.errors import CheckpointError

T = TypeVar("T")

MOST_BYTES: Final = 64 << 20
"""A longer file is taken for an attack on the memory."""

_POINTER: Final = b"version https://git-lfs.github.com/"


def read_text(path: Path) -> str | None:
    """The UTF-8 text of a file, or None where there is no such file.

    Raises:
        CheckpointError: the file is there and cannot be read, is no plain file (a pipe would block), or too long.
    """
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode) or state.st_size > MOST_BYTES:
            raise CheckpointError(f"{path}: is not a plain file of at most {MOST_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def refuse_pointer(path: Path) -> None:
    """Raise CheckpointError where a clone without Git LFS has a few words in place of a large file, or none to read."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(_POINTER))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if begin == _POINTER:
        raise CheckpointError(f"{path}: is a pointer of Git LFS and not the file, which `git lfs pull` fetches")


def read_json_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, or None where there is no such file.

    Raises:
        CheckpointError: the file is there and is not a readable JSON object.
    """
    return _read_json(path, dict, "object")


def read_json_array(path: Path) -> list[Any] | None:
    """The JSON array in a file, or None where there is no such file. Errors as `read_json_object`."""
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
