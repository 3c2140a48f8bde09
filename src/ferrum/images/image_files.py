"""`ImageFile`: the size of an image and the parts of its file that pixels depend on, read before anything is decoded.

PNG, JPEG, GIF, BMP and WebP. Comments, profiles and other frames are left out, so that a decoder never sees them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import error as StructError
from struct import unpack_from
from typing import Final

MAX_PARTS: Final = 1 << 16
"""Limit of chunks, segments or blocks before the pixels of a file."""

MAX_SCANS: Final = 100
"""Limit of scans of a progressive JPEG: each passes over the whole image."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file of an image.

    Attributes:
        format: its name, as Pillow has it.
        width, height: in pixels, as its header says and before its orientation is applied.
        data: the file without parts that no pixel depends on.
    """

    format: str
    width: int
    height: int
    data: bytes


def image_file(data: bytes) -> ImageFile | None:
    """Return the image of a file by its first bytes; None for another format. Raises ValueError: it is damaged."""
    for pattern, read in _READERS.items():
        if re.match(pattern, data, re.DOTALL):
            try:
                return read(data)
            except (StructError, IndexError):
                raise ValueError("it ends within its header") from None
    return None


def _png(data: bytes) -> ImageFile:
    width, height = unpack_from(">II", data, 16)
    kept = [data[:8]]
    for kind, start, end in _chunks(data):
        if kind in (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND") or (kind == b"eXIf" and end - start < 1 << 16):
            kept.append(data[start:end])
    return ImageFile("PNG", width, height, b"".join(kept))


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and end of the chunks of a PNG; a file that was cut has fewer."""
    start = 8
    for _ in range(MAX_PARTS):
        if start + 12 > len(data):
            return
        length, kind = unpack_from(">I4s", data, start)
        end = start + 12 + length
        yield kind, start, end
        if kind == b"IEND":
            return
        start = end
    raise ValueError(f"it has more than {MAX_PARTS} chunks")


_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers that begin a frame of a JPEG, which has the size."""

_TABLES: Final = frozenset({0xC4, 0xCC, 0xDB, 0xDD, 0xE0, 0xEE})
"""Markers of tables, and those of JFIF and Adobe, which name the colours."""


def _jpeg(data: bytes) -> ImageFile:
    size, kept, place, oriented = None, [data[:2]], 2, False
    for _ in range(MAX_PARTS):
        while data[place] == 0xFF and data[place + 1] == 0xFF:  # bytes that fill
            place += 1
        if data[place] != 0xFF:
            raise ValueError("its header is damaged")
        marker = data[place + 1]
        if marker == 0xDA:
            break
        (length,) = unpack_from(">H", data, place + 2)
        segment = data[place : place + 2 + length]
        if marker in _FRAMES:
            if size is not None:
                raise ValueError("it has two sizes")
            size = unpack_from(">HH", segment, 5)
        exif = marker == 0xE1 and segment[4:10] == b"Exif\0\0" and not oriented
        oriented = oriented or exif
        if exif or marker in _FRAMES or marker in _TABLES:
            kept.append(segment)
        place += 2 + length
    else:
        raise ValueError(f"it has more than {MAX_PARTS} segments")
    if size is None:
        raise ValueError("its header has no size")
    if data.count(b"\xff\xda", place) > MAX_SCANS:
        raise ValueError(f"it has more than {MAX_SCANS} scans")
    return ImageFile("JPEG", size[1], size[0], b"".join((*kept, data[place:])))


def _gif(data: bytes) -> ImageFile:
    width, height, flags = unpack_from("<HHB", data, 6)
    place = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    control, head, count = b"", data[:place], 0
    while data[place] == 0x21:
        begin, kind = place, data[place + 1]
        place += 1
        length = 1  # the block that names the kind
        while length:
            place, count = place + length, count + 1
            if count > MAX_PARTS:
                raise ValueError(f"it has more than {MAX_PARTS} blocks before its first frame")
            length = data[place]
            place += 1
        if kind == 0xF9:
            control = data[begin:place]
    if data[place] != 0x2C:
        raise ValueError("it has no frame")
    left, top, across, down = unpack_from("<HHHH", data, place + 1)
    return ImageFile("GIF", max(width, left + across), max(height, top + down), head + control + data[place:])


def _bmp(data: bytes) -> ImageFile:
    (header,) = unpack_from("<I", data, 14)
    if header == 12:
        width, height = unpack_from("<HH", data, 18)
        return ImageFile("BMP", width, height, data)
    width, height, _, _, compression = unpack_from("<iiHHI", data, 18)
    if compression not in (0, 3, 6):  # plain, and with masks of colours
        raise ValueError("it is a compressed BMP, which is not read; save it as PNG")
    return ImageFile("BMP", width, abs(height), data)


def _webp(data: bytes) -> ImageFile:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif kind == b"VP8L":
        (bits,) = unpack_from("<I", data, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in unpack_from("<HH", data, 26))
    else:
        raise ValueError("its header is damaged")
    return ImageFile("WEBP", width, height, data)


_READERS: Final[dict[bytes, Callable[[bytes], ImageFile]]] = {
    rb"\x89PNG\r\n\x1a\n": _png,
    rb"\xff\xd8\xff": _jpeg,
    rb"GIF8[79]a": _gif,
    rb"RIFF....WEBP": _webp,
    rb"BM": _bmp,
}
