"""Codebooks of GGUF's IQ types: the points that their codes number.

A point has four or eight numbers, each one of a few. A codebook is the set of its points in ascending order, the last
number first. The file `assets/codebooks.zlib` has a bit for each possible point of each codebook in turn: whether it is
in the codebook. Points: ggml's `ggml-common.h`.
"""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import ferrum

Int8 = NDArray[np.int8]

_FILE: Final = Path(ferrum.__file__).parent / "assets" / "codebooks.zlib"


class Codebook(NamedTuple):
    """The numbers that occur in points, ascending, and how many numbers a point has."""

    levels: tuple[int, ...]
    size: int

    @property
    def possible(self) -> int:
        """Number of possible points."""
        return int(len(self.levels) ** self.size)


_THREE: Final = (8, 25, 43)
CODEBOOKS: Final = {
    "iq2_xxs": Codebook(_THREE, 8),
    "iq2_xs": Codebook(_THREE, 8),
    "iq2_s": Codebook(_THREE, 8),
    "iq3_xxs": Codebook((4, 12, 20, 28, 36, 44, 52, 62), 4),
    "iq3_s": Codebook((1, 3, 5, 7, 9, 11, 13, 15), 4),
    "iq1_s": Codebook((-1, 0, 1), 8),
}
"""By the format that introduced it, in the order of the file. IQ1_M has the points of IQ1_S."""


@cache
def points_of(name: str) -> Int8:
    """Return the points of a codebook, int8 [points, size]."""
    packed, begin = zlib.decompress(_FILE.read_bytes()), 0
    for other, book in CODEBOOKS.items():
        nbytes = -(-book.possible // 8)
        if other == name:
            break
        begin += nbytes
    bits = np.unpackbits(np.frombuffer(packed[begin : begin + nbytes], np.uint8), bitorder="little")
    powers = len(book.levels) ** np.arange(book.size)
    points: Int8 = np.array(book.levels, np.int8)[np.flatnonzero(bits)[:, None] // powers % len(book.levels)]
    return np.ascontiguousarray(points)


def packed_points(name: str) -> NDArray[np.uint32]:
    """Return the points as the native library looks them up, uint32 [points] (`native/src/codebooks.hpp`)."""
    book, points = CODEBOOKS[name], points_of(name)
    if book.size == 4:
        return points.view("<u4")[:, 0].astype(np.uint32)
    indices = np.searchsorted(np.array(book.levels, np.int8), points).astype(np.uint32)
    shifts = np.array([8 * (i % 4) + 4 * (i // 4) for i in range(8)], np.uint32)
    packed: NDArray[np.uint32] = np.bitwise_or.reduce(indices << shifts, axis=1)
    return packed
