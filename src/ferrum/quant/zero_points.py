"""Blocks of 128 inputs with a scale and a zero point for 32, 64 or 128 of them: integers of GPTQ and AWQ.

    weight = (code - zero point) * scale      exact in float32

A block has, in order,

    codes   4 bits: words of 4 bytes, each of the next 8 inputs; byte j has the inputs j and j + 4, low bits first
            2 bits: likewise of 16 inputs: j, j + 4, j + 8 and j + 12
            3 bits: the two lower bits likewise, then words of the upper bits of 32 inputs
    d       float16 scales of the groups
    zeros   four bits for each 32 inputs, in two bytes

Panels keep these bytes, as those of blocks of GGUF files (`low_bits.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.quant.low_bits import U8, Decoded, LowBits

BLOCK: Final = 128
_UNIT: Final = 32
_UNITS: Final = BLOCK // _UNIT


def _decode(blocks: U8, *, bits: int, group: int) -> Decoded:
    words = blocks[:, : (64 if bits == 4 else 32)].reshape(len(blocks), _UNITS, -1, 1, 4)
    width = 4 if bits == 4 else 2
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    codes = (words >> shifts & np.uint8((1 << width) - 1)).reshape(len(blocks), _UNITS, _UNIT)
    if bits == 3:
        upper = blocks[:, 32:48].reshape(len(blocks), _UNITS, 1, 4) >> np.arange(8, dtype=np.uint8)[:, None]
        codes |= (upper & np.uint8(1)).reshape(codes.shape) << np.uint8(2)
    scales, zeros = blocks[:, 16 * bits : -2], blocks[:, -2:, None] >> np.array((0, 4), np.uint8)
    integers = codes.view(np.int8) - (zeros & np.uint8((1 << bits) - 1)).reshape(-1, _UNITS, 1).view(np.int8)
    d = np.ascontiguousarray(scales).view("<f2").astype(np.float32)
    return Decoded(integers, np.repeat(d, group // _UNIT, axis=1))


def blocks_of(codes: U8, zeros: U8, scales: NDArray[np.float16], bits: int) -> U8:
    """Return blocks.

    Args:
        codes: uint8 [N, B, 128].
        zeros: zero points below 2^bits, uint8 [N, B, 4]: of each 32 inputs.
        scales: float16 [N, B, groups].

    Returns:
        uint8 [N, B, bytes].
    """
    shape = codes.shape[:2]
    low, width = (codes, 4) if bits == 4 else (codes & np.uint8(3), 2)
    words = low.reshape(*shape, -1, 8 // width, 4) << np.arange(0, 8, width, dtype=np.uint8)[:, None]
    parts = [np.bitwise_or.reduce(words, axis=3).reshape(*shape, -1)]
    if bits == 3:
        upper = (codes >> np.uint8(2)).reshape(*shape, _UNITS, 8, 4) << np.arange(8, dtype=np.uint8)[:, None]
        parts.append(np.bitwise_or.reduce(upper, axis=3).reshape(*shape, -1))
    parts.append(np.ascontiguousarray(scales, "<f2").view(np.uint8))
    parts.append(zeros[..., 0::2] | zeros[..., 1::2] << np.uint8(4))
    return np.concatenate(parts, axis=2)


def _format(bits: int, group: int) -> LowBits:
    groups = BLOCK // group
    halves = tuple(16 * bits + 2 * at for at in range(groups))
    pieces = ((4, 4 * bits), (2, groups + 1))
    return LowBits(BLOCK, 16 * bits + 2 * groups + 2, _UNIT, pieces, halves, partial(_decode, bits=bits, group=group))


ZERO_POINTS: Final[Mapping[str, LowBits]] = {
    f"q{bits}_z{group}": _format(bits, group) for bits in (4, 3, 2) for group in (32, 64, 128)
}
"""By name: `q3_z64` has codes of 3 bits and groups of 64 inputs."""
