"""The first metadata of a GGUF file: enough to see whether it is a model, in a read of a few kilobytes.

Whole headers are read in `gguf_file.py`.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from ferrum.sources.gguf_file import MAGIC

_READ: Final = 1 << 16
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the numeric types of metadata."""

_STRING: Final = 8

_TYPE: Final = "general.type"
_ARCHITECTURE: Final = "general.architecture"
_KINDS: Final = {"imatrix": "an importance matrix", "mmproj": "a projector of images", "adapter": "an adapter"}
_PROJECTOR: Final = "clip"
"""Architecture of projectors."""


def is_gguf(path: Path) -> bool:
    """Whether a file that can be read begins as GGUF files do."""
    return _read(path)[: len(MAGIC)] == MAGIC


def is_model(path: Path) -> bool:
    """Whether a file begins as a model's GGUF file does."""
    data = _read(path)
    return data[: len(MAGIC)] == MAGIC and _begin(data)[0] != 0 and other_kind(path) is None


def other_kind(path: Path) -> str | None:
    """Return what a GGUF file is in words if it belongs to a model and is none; else None."""
    metadata = _begin(_read(path))[1]
    return _KINDS.get("mmproj" if metadata.get(_ARCHITECTURE) == _PROJECTOR else metadata.get(_TYPE, ""))


def _read(path: Path) -> bytes:
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(_READ)
    return b""


def _begin(data: bytes) -> tuple[int | None, dict[str, str]]:
    """Return the number of tensors, and the texts of the metadata before the first array."""
    metadata: dict[str, str] = {}
    tensors = None
    with suppress(struct.error, UnicodeDecodeError):
        tensors, values = struct.unpack_from("<QQ", data, 8)
        at = 24
        for _ in range(values):
            key, at = _string(data, at)
            code, at = struct.unpack_from("<I", data, at)[0], at + 4
            if code == _STRING:
                metadata[key], at = _string(data, at)
            elif code in _SIZES:
                at += _SIZES[code]
            else:
                break
    return tensors, metadata


def _string(data: bytes, at: int) -> tuple[str, int]:
    """Return the string at a byte, and the byte after it."""
    length = struct.unpack_from("<Q", data, at)[0]
    begin, end = at + 8, at + 8 + length
    if end > len(data):
        raise struct.error("the string is cut off")
    return data[begin:end].decode(), end
