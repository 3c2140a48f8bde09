"""The small files of a model by name, in a directory or wherever a model keeps them; readers for text and JSON.

Weights are read in `runtime`.
"""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from ferrum.core.errors import CheckpointError

T = TypeVar("T")

MAX_BYTES: Final = 64 << 20
"""Largest file to read: a limit on memory for untrusted checkpoints."""

_POINTER: Final = b"version https://git-lfs.github.com/"
POINTER_BYTES: Final = len(_POINTER)


class ModelFiles(Protocol):
    """The files of a model other than its weights, by their names in the Hugging Face layout."""

    def read_file(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist.

        Raises:
            CheckpointError: the file is unreadable, too large, or not a regular file (a pipe would block).
        """

    def file_names(self, folder: str = "") -> list[str]:
        """Return the sorted names of the files in a folder (default: outside of any folder)."""

    def where(self, name: str) -> str:
        """Return the place of a file for messages; of the whole model for the name ""."""


class DirectoryFiles(ModelFiles):
    """The files of a directory.

    Attributes:
        path: the directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_file(self, name: str) -> bytes | None:
        path = self.path / name
        try:
            state = path.stat()
            if not stat.S_ISREG(state.st_mode) or state.st_size > MAX_BYTES:
                raise CheckpointError(f"{path}: must be a regular file of at most {MAX_BYTES} bytes")
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error

    def file_names(self, folder: str = "") -> list[str]:
        # Unlike `iterdir`, a pattern finds nothing in a folder that is missing or unreadable.
        return sorted(path.name for path in (self.path / folder).glob("*") if path.is_file())

    def where(self, name: str) -> str:
        return str(self.path / name)


def refuse_pointer(where: object, begin: bytes) -> None:
    """Reject a Git LFS pointer in place of a file.

    Args:
        where: the file, for the message.
        begin: its content, or its first `POINTER_BYTES`.

    Raises:
        CheckpointError: it is a pointer.
    """
    if begin.startswith(_POINTER):
        raise CheckpointError(f"{where}: is a Git LFS pointer, not the file; run `git lfs pull`")


def read_text(files: ModelFiles, name: str) -> str | None:
    """Return the UTF-8 text of a file, or None if it does not exist. Line ends become newlines.

    Raises:
        CheckpointError: as `read_file`, and the file is not UTF-8.
    """
    content = files.read_file(name)
    if content is None:
        return None
    try:
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{files.where(name)}: cannot be read: {error}") from error


def read_json_object(files: ModelFiles, name: str) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if it does not exist.

    Raises:
        CheckpointError: the file exists and is not a readable JSON object.
    """
    return _read_json(files, name, dict, "object")


def read_json_array(files: ModelFiles, name: str) -> list[Any] | None:
    """Return the JSON array in a file, or None. Errors as `read_json_object`."""
    return _read_json(files, name, list, "array")


def _read_json(files: ModelFiles, name: str, kind: type[T], kind_name: str) -> T | None:
    text = read_text(files, name)
    if text is None:
        return None
    where = files.where(name)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: is not valid JSON: {error}") from error
    if not isinstance(value, kind):
        raise CheckpointError(f"{where}: must hold a JSON {kind_name}, not {type(value).__name__}")
    return value
