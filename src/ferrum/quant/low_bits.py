"""Blocks of less than four bits a weight, and NVFP4, as GGUF files store them.

Panels keep the bytes of these blocks (`panels.py`), so that a matrix takes no more than its file. What they mean, for
groups of 16 or 32 inputs: weight = integer * scale + minimum, rounded once. Integers are signed bytes; scales and
minima are products that are exact in float32. Layouts: ggml's `ggml-common.h` and `ggml-quants.c`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.codebooks import points_of

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
Int8 = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Decoded:
    """The numbers of blocks [n, bytes].

    Attributes:
        integers: int8 [n, groups, group]; of `normal_floats.py` and of the format fp8, numbers in f32.
        scales: f32 [n, groups].
        minima: f32 [n, groups], or None.
        outputs: factors and divisors of outputs, f32 [n, 2], or None. `scales` are without them.
    """

    integers: NDArray[Any]
    scales: F32
    minima: F32 | None = None
    outputs: F32 | None = None


def _half(blocks: U8, at: int) -> F32:
    """Return the f16 at a byte of each block as f32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _words(blocks: U8, begin: int, count: int, dtype: str) -> NDArray[Any]:
    """Return `count` integers of a dtype, [n, count]."""
    size = np.dtype(dtype).itemsize
    return np.ascontiguousarray(blocks[:, begin : begin + count * size]).view(dtype)


def _cut(codes: NDArray[Any], shifts: tuple[int, ...], mask: int) -> NDArray[Any]:
    """Return [..., n] shifted by each shift and masked, [..., shifts, n]."""
    cut: NDArray[Any] = codes[..., None, :] >> np.array(shifts, codes.dtype)[:, None] & codes.dtype.type(mask)
    return cut


def _parts(codes: NDArray[Any], shifts: tuple[int, ...], mask: int) -> NDArray[Any]:
    """Return the parts of each of [n, count] in turn, [n, count x shifts]."""
    parts: NDArray[Any] = codes[..., None] >> np.array(shifts, codes.dtype) & codes.dtype.type(mask)
    return parts.reshape(len(codes), -1)


def _bits(codes: NDArray[Any], count: int) -> U8:
    """Return the lowest bits of each of [n, c], uint8 [n, c, count]."""
    bits: U8 = (codes[..., None] >> np.arange(count).astype(codes.dtype) & codes.dtype.type(1)).astype(np.uint8)
    return bits


def _signed(points: Int8, negative: U8) -> Int8:
    """Return points [n, p, size] with the signs of bits [n, p', 8], of as many numbers."""
    return np.where(negative.reshape(points.shape) != 0, -points, points)


def _even(sevens: NDArray[Any]) -> U8:
    """Return eight signs of each of [n, p] of seven: the number of minus signs is even."""
    seven = _bits(sevens, 7)
    return np.concatenate((seven, np.bitwise_xor.reduce(seven, axis=-1, keepdims=True)), axis=-1)


def _odd(scales: NDArray[Any]) -> F32:
    return (2 * scales.astype(np.int32) + 1).astype(np.float32)


def _times(d: F32, factors: F32) -> F32:
    with np.errstate(invalid="ignore"):
        product: F32 = d * factors
    return product


def _two_bits(blocks: U8, at: int) -> U8:
    """Return the codes of 64 bytes, [n, 8, 32]."""
    halves = blocks[:, at : at + 64].reshape(-1, 2, 32)
    return _cut(halves, (0, 2, 4, 6), 3).reshape(-1, 8, 32)


def _q2_k(blocks: U8) -> Decoded:
    scales = blocks[:, :16]
    factors = _times(_half(blocks, 80), (scales & 15).astype(np.float32))
    minima = -_times(_half(blocks, 82), (scales >> 4).astype(np.float32))
    return Decoded(_two_bits(blocks, 16).reshape(-1, 16, 16).view(np.int8), factors, minima)


def _q3_k(blocks: U8) -> Decoded:
    high = _cut(blocks[:, :32], tuple(range(8)), 1) << np.uint8(2)
    codes = (_two_bits(blocks, 32) | high).view(np.int8) - np.int8(4)
    low = _cut(blocks[:, 96:104], (0, 4), 15).reshape(-1, 16)
    upper = _cut(blocks[:, 104:108], (0, 2, 4, 6), 3).reshape(-1, 16)
    scales = (low | upper << np.uint8(4)).view(np.int8) - np.int8(32)
    return Decoded(codes.reshape(-1, 16, 16), _times(_half(blocks, 108), scales.astype(np.float32)))


def _iq2_xxs(blocks: U8) -> Decoded:
    words = _words(blocks, 2, 16, "<u4").reshape(-1, 8, 2)
    points = points_of("iq2_xxs")[blocks[:, 2:].reshape(-1, 8, 8)[..., :4].reshape(-1, 32)]
    signs = _even(_parts(words[..., 1], (0, 7, 14, 21), 127))
    scales = _odd(words[..., 1] >> np.uint32(28)) * np.float32(0.125)
    return Decoded(_signed(points, signs).reshape(-1, 8, 32), _times(_half(blocks, 0), scales))


def _iq2_xs(blocks: U8) -> Decoded:
    words = _words(blocks, 2, 32, "<u2")
    numbers = _signed(points_of("iq2_xs")[words & 511], _even(words >> np.uint16(9)))
    scales = _odd(_parts(blocks[:, 66:], (0, 4), 15)) * np.float32(0.125)
    return Decoded(numbers.reshape(-1, 16, 16), _times(_half(blocks, 0), scales))


def _iq2_s(blocks: U8) -> Decoded:
    codes = blocks[:, 2:34] | _parts(blocks[:, 66:74], (0, 2, 4, 6), 3).astype(np.uint16) << np.uint16(8)
    numbers = _signed(points_of("iq2_s")[codes], _bits(blocks[:, 34:66], 8))
    scales = _odd(_parts(blocks[:, 74:], (0, 4), 15)) * np.float32(0.125)
    return Decoded(numbers.reshape(-1, 16, 16), _times(_half(blocks, 0), scales))


def _iq3_xxs(blocks: U8) -> Decoded:
    words = _words(blocks, 66, 8, "<u4")
    points = points_of("iq3_xxs")[blocks[:, 2:66]].reshape(-1, 32, 8)
    signs = _even(_parts(words, (0, 7, 14, 21), 127))
    scales = _odd(words >> np.uint32(28)) * np.float32(0.25)
    return Decoded(_signed(points, signs).reshape(-1, 8, 32), _times(_half(blocks, 0), scales))


def _iq3_s(blocks: U8) -> Decoded:
    codes = blocks[:, 2:66] | _bits(blocks[:, 66:74], 8).reshape(-1, 64).astype(np.uint16) << np.uint16(8)
    numbers = _signed(points_of("iq3_s")[codes].reshape(-1, 32, 8), _bits(blocks[:, 74:106], 8))
    scales = _odd(_parts(blocks[:, 106:], (0, 4), 15))
    return Decoded(numbers.reshape(-1, 8, 32), _times(_half(blocks, 0), scales))


def _shifted(points: Int8, minus: U8) -> Int8:
    """Return eight times the points [n, p, 8] with 1/8 added, or subtracted where a bit [n, p] is set."""
    return points * np.int8(8) + np.where(minus != 0, np.int8(-1), np.int8(1))[..., None]


def _iq1_s(blocks: U8) -> Decoded:
    words = _words(blocks, 34, 8, "<u2")
    codes = blocks[:, 2:34] | _parts(words, (0, 3, 6, 9), 7) << np.uint16(8)
    minus = np.repeat(words >> np.uint16(15), 4, axis=1).astype(np.uint8)
    scales = _odd(words >> np.uint16(12) & np.uint16(7)) * np.float32(0.125)
    numbers = _shifted(points_of("iq1_s")[codes], minus)
    return Decoded(numbers.reshape(-1, 8, 32), _times(_half(blocks, 0), scales))


def _iq1_m(blocks: U8) -> Decoded:
    fours = _parts(blocks[:, 32:48], (0, 4), 15)
    codes = blocks[:, :32] | (fours & np.uint8(7)).astype(np.uint16) << np.uint16(8)
    words = _words(blocks, 48, 4, "<u2")
    bits = words >> np.array((12, 8, 4, 0), np.uint16) & np.array((0xF, 0xF0, 0xF00, 0xF000), np.uint16)
    d = np.bitwise_or.reduce(bits, axis=1, keepdims=True).view("<f2").astype(np.float32)
    scales = _odd(_parts(words, (0, 3, 6, 9), 7)) * np.float32(0.125)
    numbers = _shifted(points_of("iq1_s")[codes], fours >> np.uint8(3))
    return Decoded(numbers.reshape(-1, 16, 16), _times(d, scales))


def _tq2_0(blocks: U8) -> Decoded:
    integers = _two_bits(blocks, 0).view(np.int8) - np.int8(1)
    return Decoded(integers, np.repeat(_half(blocks, 64), 8, axis=1))


def _tq1_0(blocks: U8) -> Decoded:
    """Five digits of base 3 in a byte, as a fraction of 256: the next one is the whole part of three times that."""
    runs = ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    powers = np.array((1, 3, 9, 27, 81), np.uint8)[:, None]
    digits = [(blocks[:, None, begin:end] * powers[:count]).reshape(len(blocks), -1) for begin, end, count in runs]
    whole = np.concatenate(digits, axis=1).astype(np.uint16) * np.uint16(3) >> np.uint16(8)
    integers = whole.astype(np.int8) - np.int8(1)
    return Decoded(integers.reshape(-1, 8, 32), np.repeat(_half(blocks, 52), 8, axis=1))


_FP4: Final = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int8)


def _nvfp4(blocks: U8) -> Decoded:
    """Scales are FP8 (E4M3) without a sign, of which 127 counts as 0; integers are twice the numbers of FP4."""
    codes = _cut(blocks[:, 4:].reshape(-1, 4, 8), (0, 4), 15).reshape(-1, 4, 16)
    exponents, fractions = (blocks[:, :4] >> 3).astype(np.int32) & 15, (blocks[:, :4] & 7).astype(np.float32)
    normal = np.ldexp(1 + fractions / np.float32(8), exponents - 8)
    scales = np.where(exponents == 0, fractions * np.float32(2.0**-10), normal.astype(np.float32))
    scales[blocks[:, :4] == 127] = 0
    return Decoded(_FP4[codes], scales.astype(np.float32))


@dataclass(frozen=True, slots=True)
class LowBits:
    """A type of blocks.

    Attributes:
        inputs, nbytes: of a block.
        group: inputs with a common scale.
        pieces: (width, count) of the block's fields in order; a panel has each field of its 32 outputs together.
        halves: first bytes of scales in f16.
        decode: blocks [n, nbytes] -> their numbers.
    """

    inputs: int
    nbytes: int
    group: int
    pieces: tuple[tuple[int, int], ...]
    halves: tuple[int, ...]
    decode: Callable[[U8], Decoded]

    @property
    def fields(self) -> Iterator[tuple[int, int]]:
        """First byte and width of each field."""
        begin = 0
        for width, count in self.pieces:
            yield from ((begin + index * width, width) for index in range(count))
            begin += count * width


LOW_BITS: Final[Mapping[str, LowBits]] = {
    "q2_k": LowBits(256, 84, 16, ((1, 16), (4, 16), (2, 2)), (80, 82), _q2_k),
    "q3_k": LowBits(256, 110, 16, ((4, 24), (1, 12), (2, 1)), (108,), _q3_k),
    "iq2_xxs": LowBits(256, 66, 32, ((2, 1), (4, 16)), (0,), _iq2_xxs),
    "iq2_xs": LowBits(256, 74, 16, ((2, 33), (1, 8)), (0,), _iq2_xs),
    "iq2_s": LowBits(256, 82, 16, ((2, 1), (4, 16), (1, 16)), (0,), _iq2_s),
    "iq3_xxs": LowBits(256, 98, 32, ((2, 1), (4, 24)), (0,), _iq3_xxs),
    "iq3_s": LowBits(256, 110, 32, ((2, 1), (4, 16), (1, 8), (4, 8), (1, 4)), (0,), _iq3_s),
    "iq1_s": LowBits(256, 50, 32, ((2, 1), (4, 8), (2, 8)), (0,), _iq1_s),
    "iq1_m": LowBits(256, 56, 16, ((4, 8), (2, 12)), (), _iq1_m),
    "tq1_0": LowBits(256, 54, 32, ((4, 13), (2, 1)), (52,), _tq1_0),
    "tq2_0": LowBits(256, 66, 32, ((4, 16), (2, 1)), (64,), _tq2_0),
    "nvfp4": LowBits(64, 36, 16, ((1, 4), (4, 8)), (), _nvfp4),
}
"""By the name of their format, which is GGUF's in lower case."""


def with_scales(low: LowBits, random: U8, scales: F32) -> U8:
    """Return random blocks [..., nbytes] with these scales [...] in f16, so that their numbers are finite."""
    blocks = random.copy()
    halves = (scales / np.float32(64 * 16)).astype("<f2")[..., None].view(np.uint8)
    for begin in low.halves:
        blocks[..., begin : begin + 2] = halves
    if low is LOW_BITS["iq1_m"]:
        blocks[..., 49::2] &= 15
        bits = halves.view("<u2") >> np.array((0, 4, 8, 12), np.uint16) & np.uint16(15)
        blocks[..., 49::2] |= (bits << np.uint16(4)).astype(np.uint8)
    if low is LOW_BITS["nvfp4"]:
        blocks[..., :4] &= 63
    if low.inputs == 64 and low.group == 64:  # NF4
        blocks[..., :4] = scales.astype("<f4")[..., None].view(np.uint8)
    return blocks
