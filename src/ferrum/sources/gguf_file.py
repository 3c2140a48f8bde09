"""GGUF files, mapped: the header is read and checked at once, a tensor when it is used. Versions 2 and 3.

A file is the magic, a version, the counts of tensors and of metadata, the metadata, a record of each tensor, and after
padding to the alignment the tensors' data. All numbers are little-endian. Source: the format's specification in the
repository of ggml (docs/gguf.md).
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import CheckpointError, Unsupported
from ferrum.quant.gguf_blocks import GGUF_TYPES, TYPE_NAMES
from ferrum.sources.tensor_file import forget_bytes, mapped, opened

_SPLIT: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)

MAX_ENTRIES: Final = 1 << 20
"""More metadata or tensors than any model has: a larger count is damage, or an attack on the memory."""

MAX_HEADER: Final = 1 << 26
"""Bytes that are read as the header; the largest of published files take a quarter. A wrong length reads no weights."""

MAX_ITEMS: Final = 1 << 23
"""Items of all arrays of a file's metadata; the largest vocabulary with its merges has a sixth."""

_NUMBERS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""Struct formats of the numeric types of metadata."""

_LENGTH: Final = struct.Struct("<Q")
_STRING: Final = 8
_ARRAY: Final = 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor in a file.

    Attributes:
        kind: name of its type, a key of `gguf_blocks.GGUF_TYPES`.
        shape: outermost dimension first, as in numpy.
        begin, end: bytes from the start of the file.
    """

    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


class GgufFile:
    """A mapped GGUF file.

    Args:
        path: the file.

    Attributes:
        metadata: values by key; an array is a list.
        tensors: by name, in the order of the file.

    Raises:
        CheckpointError: the file is missing, truncated or damaged; the message says what is wrong and where.
        Unsupported: another version, byte order or tensor type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with opened(path) as (file, begin):
                if begin[:4] != MAGIC:
                    raise CheckpointError(f"{path}: is not a GGUF file: it begins with {begin[:4]!r}")
                self._map = mapped(file.fileno())
        except ValueError as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        reader = _Reader(path, self._map)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._read_header(reader)

    def _read_header(self, reader: _Reader) -> None:
        reader.skip(len(MAGIC))
        version = reader.number("<I")
        if version not in VERSIONS:
            if version and not version & 0xFFFF:
                raise Unsupported(
                    f"{self.path}: big-endian GGUF", "convert it to little-endian with gguf-convert-endian"
                )
            raise Unsupported(
                f"{self.path}: GGUF version {version}", "versions 2 and 3 are read: convert the model again"
            )
        num_tensors, num_values = reader.count("tensors", 24), reader.count("metadata", 13)
        for _ in range(num_values):
            key = reader.string("a metadata key")
            if key in self.metadata:
                raise reader.damage(f"the metadata key {key!r} appears twice")
            self.metadata[key] = reader.value(reader.number("<I"), key)
        records = [self._read_record(reader) for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            raise reader.damage(f"general.alignment must be a power of two from 8 up, not {alignment!r}")
        data = -(-reader.at // alignment) * alignment
        for name, kind, shape, offset in records:
            self.tensors[name] = self._placed(reader, name, kind, shape, (data, offset, alignment))

    def _read_record(self, reader: _Reader) -> tuple[str, str, tuple[int, ...], int]:
        """Return name, type, shape and offset of the next tensor record."""
        name = reader.string("a tensor's name")
        dimensions = reader.number("<I")
        if not 1 <= dimensions <= 4:
            raise reader.damage(f"tensor {name!r} has {dimensions} dimensions, not 1 to 4")
        shape = tuple(reader.number("<Q") for _ in range(dimensions))[::-1]
        code = reader.number("<I")
        if code not in TYPE_NAMES:
            raise Unsupported(f"{self.path}: tensor {name!r} of GGUF type {code}", _KNOWN)
        return name, TYPE_NAMES[code], shape, reader.number("<Q")

    def _placed(
        self, reader: _Reader, name: str, kind: str, shape: tuple[int, ...], place: tuple[int, int, int]
    ) -> GgufTensor:
        """Return a checked tensor. Its place is: begin of the data, offset, alignment."""
        data, offset, alignment = place
        if name in self.tensors:
            raise reader.damage(f"the tensor {name!r} appears twice")
        if kind not in GGUF_TYPES:
            raise Unsupported(f"{self.path}: tensor {name!r} of type {kind}", _KNOWN)
        block = GGUF_TYPES[kind]
        if not all(shape) or shape[-1] % block.numbers:
            raise reader.damage(f"tensor {name!r} of shape {list(shape)} cannot be of type {kind}")
        begin = data + offset
        end = begin + math.prod(shape) // block.numbers * block.nbytes
        if offset % alignment or end > len(self._map):
            raise reader.damage(f"tensor {name!r} lies at byte {begin} to {end} of {len(self._map)}: truncated?")
        return GgufTensor(kind, shape, begin, end)

    def blocks(self, name: str) -> NDArray[np.uint8]:
        """Return a tensor's blocks, uint8 [rows, blocks of a row, bytes]: a read-only view of the mapped file."""
        tensor = self.tensors[name]
        block = GGUF_TYPES[tensor.kind]
        flat = np.frombuffer(self._map, np.uint8, tensor.end - tensor.begin, tensor.begin)
        return flat.reshape(-1, tensor.shape[-1] // block.numbers, block.nbytes)

    def forget(self, name: str) -> None:
        """Free the memory that reading a tensor took; views stay valid and read the file again."""
        tensor = self.tensors[name]
        forget_bytes(self._map, tensor.begin, tensor.end)


def open_shards(path: Path) -> tuple[GgufFile, ...]:
    """Open a file and the others of a split model, whichever of them is named.

    Raises:
        CheckpointError, Unsupported: as `GgufFile`; or a part is missing.
    """
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return (GgufFile(path),)
    count = int(match["count"])
    names = (f"{match['stem']}-{number:05}-of-{count:05}{match['suffix']}" for number in range(1, count + 1))
    return tuple(GgufFile(path.with_name(name)) for name in names)


class _Reader:
    """A cursor over a file's header. Every read is checked against the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.at = 0
        self._path, self._data, self._size = path, data, min(len(data), MAX_HEADER)
        self._items = 0

    def damage(self, reason: str) -> CheckpointError:
        """Return the error of a damaged file."""
        return CheckpointError(f"{self._path}: is damaged at byte {self.at}: {reason}")

    def skip(self, count: int) -> int:
        """Advance, and return the position before. Raises CheckpointError at the end of the file."""
        begin, self.at = self.at, self.at + count
        if self.at > self._size:
            self.at = begin
            ends = "a header ends" if self._size < len(self._data) else "the file ends"
            raise self.damage(f"{count} more bytes expected, but {ends} at {self._size}")
        return begin

    def number(self, format: str) -> Any:
        """Read a number of a struct format."""
        return struct.unpack_from(format, self._data, self.skip(struct.calcsize(format)))[0]

    def count(self, what: str, least: int) -> int:
        """Read a count of entries of at least `least` bytes each."""
        count: int = self.number("<Q")
        if count > min(MAX_ENTRIES, (self._size - self.at) // least):
            raise self.damage(f"{count} {what} do not fit into the file")
        return count

    def string(self, what: str) -> str:
        """Read a string. Invalid UTF-8 is damage."""
        length = self.number("<Q")
        if length > self._size - self.at:
            raise self.damage(f"{what} of {length} bytes passes the end of the header")
        begin = self.skip(length)
        try:
            return self._data[begin : begin + length].decode()
        except UnicodeDecodeError as error:
            raise self.damage(f"{what} is not UTF-8: {error}") from error

    def value(self, code: int, key: str) -> Any:
        """Read a metadata value of a type."""
        if code in _NUMBERS:
            return self.number(_NUMBERS[code])
        if code == _STRING:
            return self.string(f"the value of {key}")
        if code == _ARRAY:
            return self._array(key)
        raise self.damage(f"the metadata key {key!r} has the unknown type {code}")

    def _array(self, key: str) -> list[Any]:
        code, length = self.number("<I"), self.number("<Q")
        self._items += length
        if self._items > MAX_ITEMS:
            raise self.damage(f"{length} items of {key!r}: metadata may have {MAX_ITEMS} items in all")
        if code in _NUMBERS:
            item = struct.calcsize(_NUMBERS[code])
            if length > (self._size - self.at) // item:
                raise self.damage(f"{length} numbers of {key!r} pass the end of the header")
            begin = self.skip(length * item)
            values: list[Any] = np.frombuffer(self._data, np.dtype(_NUMBERS[code]), length, begin).tolist()
            return values
        if code != _STRING:
            raise self.damage(f"the metadata key {key!r} is an array of the unknown type {code}")
        if length > (self._size - self.at) // 8:
            raise self.damage(f"{length} strings of {key!r} pass the end of the header")
        return self._strings(f"a string of {key}", length)

    def _strings(self, what: str, count: int) -> list[str]:
        """Read strings, a hundred thousand in a vocabulary: `string` is only called for one that is damaged."""
        at, found = self.at, list[str]()
        with suppress(struct.error, UnicodeDecodeError):
            while len(found) < count:
                begin = at + _LENGTH.size
                end = begin + _LENGTH.unpack_from(self._data, at)[0]
                if end > self._size:
                    break
                found.append(self._data[begin:end].decode())
                at = end
        self.at = at
        return found + [self.string(what) for _ in range(count - len(found))]


# ---- The first metadata of a file: enough to see whether it is a model, in a read of a few kilobytes ----

_READ: Final = 1 << 16
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the numeric types of metadata."""

_KNOWN: Final = f"write the file with llama-quantize in one of the types {', '.join(GGUF_TYPES)}"

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


def is_projector(path: Path) -> bool:
    """Whether a file begins as a projector's GGUF file does."""
    return other_kind(path) == _KINDS["mmproj"]


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
