"""Parts of GGUF files as bytes: texts, metadata entries, tensor records, whole headers."""

from __future__ import annotations

import struct
from dataclasses import dataclass

CODES = {bool: 7, str: 8, float: 6}
"""Type codes of metadata values by their Python type, but for integers."""

FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def text(value: str) -> bytes:
    """Return a string with its length."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, code: int, value: bytes) -> bytes:
    """Return a metadata entry."""
    return text(key) + struct.pack("<I", code) + value


def record(name: str = "t", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    """Return the record of a tensor; dimensions are innermost first."""
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def code_of(value: object) -> int:
    """Return the type code of a value that is no list: integers are u32, u64 if large, i32 if negative."""
    if type(value) in CODES:
        return CODES[type(value)]
    assert isinstance(value, int)
    return 5 if value < 0 else 4 if value < 1 << 32 else 10


def plain(code: int, value: object) -> bytes:
    """Return a value of a type that is no array."""
    return text(str(value)) if code == 8 else struct.pack(f"<{FORMATS[code]}", value)


def array(code: int, values: list[object]) -> bytes:
    """Return an array with its type and length."""
    head = struct.pack("<IQ", code, len(values))
    if code == 8:
        return head + b"".join(text(str(value)) for value in values)
    return head + struct.pack(f"<{len(values)}{FORMATS[code]}", *values)


@dataclass(frozen=True)
class Typed:
    """A metadata value with a chosen type code; what an array says of its length may be wrong."""

    code: int
    content: bytes


def coded(value: object) -> tuple[int, bytes]:
    """Return the type code and the bytes of a value; lists are arrays, those of integers i32."""
    if isinstance(value, Typed):
        return value.code, value.content
    if isinstance(value, list):
        return 9, array(CODES.get(type(value[0]), 5) if value else 8, value)
    return code_of(value), plain(code_of(value), value)


def value_entry(key: str, value: object) -> bytes:
    """Return a metadata entry whose type is that of the value."""
    return entry(key, *coded(value))
