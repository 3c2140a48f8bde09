"""One safetensors file, mapped: its header is checked before anything is believed, its data is read when used;
and the header of one that is written.

A file is 8 bytes of header length, a JSON header that gives each tensor's dtype, shape and place, and the data. What a
valid header is decides the safetensors library (known dtypes; places in order, without gap or overlap, of the size that
shape and dtype call for, up to the file's end); here it is asked, and repeated names are refused beside. So no later
access can leave the mapping, unless somebody shortens the file while it is in use.
"""

from __future__ import annotations

import json
import mmap
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.quant.dense import FORMATS
from ferrum.text.json_files import refuse_pointer

MAX_HEADER_BYTES: Final = 32 << 20
"""More than a quarter of a million tensors; a longer header is taken for an attack on the memory."""

_ALIGNMENT: Final = 64

_FORMAT_OF: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies.

    Attributes:
        dtype: as the file spells it: "F32", "BF16", "I64", ...
        begin, end: bytes from the start of the file.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.end - self.begin

    @property
    def format(self) -> str | None:
        """The dtype's name in `quant.dense.FORMATS`; None: it is not among them."""
        return _FORMAT_OF.get(self.dtype)


class TensorFile:
    """A mapped safetensors file.

    Attributes:
        path: the file.
        tensors: what it holds, by name, in the order of the header.

    Raises:
        CheckpointError: the file is not there, unreadable, truncated, or its header is not valid.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not path.is_file():
                raise CheckpointError(f"{path}: is not a file")
            refuse_pointer(path)
            with path.open("rb") as file:
                header = _header_of(path, file.read(8), path.stat().st_size)
                _ask_library(path)
                entries = json.loads(file.read(header), object_pairs_hook=_without_repeats)
                self._map = _mapped(file.fileno())
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: is not a valid safetensors file: {error}") from error
        entries.pop("__metadata__", None)
        self.tensors = {name: _info(entry, 8 + header) for name, entry in entries.items()}

    def read(self, name: str) -> NDArray[Any]:
        """A tensor as a read-only view of the mapped file (a copy where the file does not align it).

        Raises:
            CheckpointError: the shape is more than an array can have.
            Unsupported: not a floating-point dtype that ferrum computes with.
        """
        info = self.tensors[name]
        if info.format is None:
            raise Unsupported(
                f"dtype {info.dtype}", f"{self.path}: tensor {name!r} must be one of {', '.join(_FORMAT_OF)}"
            )
        dtype = FORMATS[info.format]
        try:
            flat = np.frombuffer(self._map, dtype, info.nbytes // dtype.itemsize, info.begin)
            view = flat.reshape(info.shape)
        except ValueError as error:
            raise CheckpointError(f"{self.path}: tensor {name!r} of shape {info.shape}: {error}") from error
        if view.flags.aligned:
            return view
        aligned = view.copy()
        self.forget(name)
        return aligned

    def read_bytes(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes, whatever they mean, as a read-only view [nbytes] of the mapped file."""
        info = self.tensors[name]
        return np.frombuffer(self._map, np.uint8, info.nbytes, info.begin)

    def forget(self, name: str) -> None:
        """Let go of the memory that reading a tensor took; views stay valid and read the file again."""
        info = self.tensors[name]
        begin = info.begin // mmap.PAGESIZE * mmap.PAGESIZE
        if info.nbytes and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, begin, info.end - begin)


def file_header(tensors: Iterable[tuple[str, str, tuple[int, ...], int]]) -> bytes:
    """The header of a file to be written: its length, then JSON filled with spaces so that the data are aligned.

    Args:
        tensors: name, dtype as the file spells it, shape and bytes of each, as their data will follow one another.
    """
    places, end = {}, 0
    for name, dtype, shape, nbytes in tensors:
        begin, end = end, end + nbytes
        places[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(places, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _mapped(file: int) -> mmap.mmap:
    """The file as memory, on large pages where the system can: faster to touch, and to read again and again."""
    memory = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _header_of(path: Path, prefix: bytes, size: int) -> int:
    """The header's length, before anything of that length is read."""
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or 8 + length > size:
        raise CheckpointError(f"{path}: is truncated: {size} bytes, {8 + length} needed for the header alone")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(f"{path}: a header of {length} bytes, more than {MAX_HEADER_BYTES}")
    return length


def _ask_library(path: Path) -> None:
    try:
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        raise CheckpointError(f"{path}: is not a valid safetensors file: {error}") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The library lets the last of equal names win; two tensors of a name are two checkpoints in one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, count), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name!r} appears {count} times")
    return found


def _info(entry: dict[str, Any], data: int) -> TensorInfo:
    begin, end = entry["data_offsets"]
    return TensorInfo(entry["dtype"], tuple(entry["shape"]), data + begin, data + end)
