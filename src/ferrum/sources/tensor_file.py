"""One safetensors file, mapped: its header is checked at once, its data is read when used. Also writes such headers.

A file is 8 bytes of header length, a JSON header with each tensor's dtype, shape and offsets, and the data. The
safetensors library validates the header (known dtypes; offsets in order, without gap or overlap, of the right size, up
to the file's end); here repeated names are refused as well. So no access can leave the mapping, unless the file is
truncated while it is in use.
"""

from __future__ import annotations

import json
import mmap
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.quant.dense import FORMATS
from ferrum.text.model_files import POINTER_BYTES, refuse_pointer

MAX_HEADER_BYTES: Final = 32 << 20
"""More than a quarter of a million tensors; a longer header may be an attack on the memory."""

_ALIGNMENT: Final = 64

FORMAT_OF: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Float formats by their names in files."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The place of a tensor in a file.

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
        """The dtype's name in `quant.dense.FORMATS`; None for other dtypes."""
        return FORMAT_OF.get(self.dtype)


class TensorFile:
    """A mapped safetensors file.

    Attributes:
        path: the file.
        tensors: its tensors by name, in the order of the header.

    Raises:
        CheckpointError: the file is missing, unreadable, truncated, or its header is invalid.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with opened(path) as (file, begin):
                header = _header_of(path, begin[:8], path.stat().st_size)
                _check_with_library(path)
                file.seek(8)
                entries = json.loads(file.read(header), object_pairs_hook=_without_repeats)
                self._map = mapped(file.fileno())
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: is not a valid safetensors file: {error}") from error
        entries.pop("__metadata__", None)
        self.tensors = {name: _info(entry, 8 + header) for name, entry in entries.items()}

    def read(self, name: str) -> NDArray[Any]:
        """Return a tensor as a read-only view of the mapped file, or as a copy if the file does not align it.

        Raises:
            CheckpointError: an array cannot have this shape.
            Unsupported: not a floating-point dtype that ferrum computes with.
        """
        info = self.tensors[name]
        if info.format is None:
            raise Unsupported(
                f"dtype {info.dtype}", f"{self.path}: tensor {name!r} must be one of {', '.join(FORMAT_OF)}"
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
        """Return a tensor's bytes as a read-only view [nbytes] of the mapped file, whatever its dtype."""
        info = self.tensors[name]
        return np.frombuffer(self._map, np.uint8, info.nbytes, info.begin)

    def forget(self, name: str) -> None:
        """Free the memory that reading a tensor took; views stay valid and read the file again."""
        info = self.tensors[name]
        forget_bytes(self._map, info.begin, info.end)


def forget_bytes(memory: mmap.mmap, begin: int, end: int) -> None:
    """Free the memory that reading some bytes of a mapped file took; views stay valid and read the file again."""
    begin = begin // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin and hasattr(mmap, "MADV_DONTNEED"):
        memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def file_header(tensors: Iterable[tuple[str, str, tuple[int, ...], int]]) -> bytes:
    """Return the header of a new file: its length, then JSON padded with spaces so that the data are aligned.

    Args:
        tensors: name, dtype as the file spells it, shape and bytes of each, in the order of their data.
    """
    places, end = {}, 0
    for name, dtype, shape, nbytes in tensors:
        begin, end = end, end + nbytes
        places[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(places, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, bytes]]:
    """Open a file of tensors.

    Yields: the file and its first bytes.

    Raises:
        CheckpointError: it is missing, cannot be read, or is a pointer to a file that was not downloaded.
    """
    try:
        if not path.is_file():
            raise CheckpointError(f"{path}: is not a file")
        with path.open("rb") as file:
            begin = file.read(POINTER_BYTES)
            refuse_pointer(path, begin)
            yield file, begin
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def mapped(file: int) -> mmap.mmap:
    """Map a file, on huge pages if the system can: they are faster to touch and to read repeatedly."""
    memory = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _header_of(path: Path, prefix: bytes, size: int) -> int:
    """Return the header's length, checked before anything of that length is read."""
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or 8 + length > size:
        raise CheckpointError(f"{path}: is truncated: {size} bytes, {8 + length} needed for the header alone")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(f"{path}: a header of {length} bytes exceeds {MAX_HEADER_BYTES}")
    return length


def _check_with_library(path: Path) -> None:
    try:
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        raise CheckpointError(f"{path}: is not a valid safetensors file: {error}") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse repeated names, of which the library takes the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, count), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name!r} appears {count} times")
    return found


def _info(entry: dict[str, Any], data: int) -> TensorInfo:
    begin, end = entry["data_offsets"]
    return TensorInfo(entry["dtype"], tuple(entry["shape"]), data + begin, data + end)
