"""The block types of GGUF files: their bytes to `BlockRows`, without a change of any number.

A block is some numbers of a row with common scales. Bit layouts: ggml's `ggml-common.h` and `ggml-quants.c`.
"""

from __future__ import annotations

from base64 import b85decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import F32, Bytes
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockRows, BlockWeight, row_weight

_FLOATS: Final = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True, slots=True)
class GgufType:
    """A type of GGUF tensors.

    Attributes:
        numbers: of a block.
        nbytes: of a block.
        format: that holds its numbers, a key of `BLOCK_FORMATS`; None for floats, Q2_K and IQ3_XXS.
        rows: blocks [N, B, nbytes] -> `BlockRows` of that format.
    """

    numbers: int
    nbytes: int
    format: str | None = None
    rows: Callable[[Bytes], BlockRows] | None = None


def _half(blocks: Bytes, at: int) -> NDArray[np.float16]:
    """Return the f16 at a byte of each block, [N, B]."""
    halves: NDArray[np.float16] = np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0]
    return halves


def _groups(codes: Bytes, size: int = 32) -> Bytes:
    """Return codes [N, B, numbers] in groups [N, G, size]."""
    return codes.reshape(len(codes), -1, size)


def nibbles(codes: Bytes) -> Bytes:
    """Return the low four bits of all bytes, then the high ones: [..., n] -> [..., 2n]."""
    return np.concatenate((codes & 15, codes >> 4), axis=-1)


def _bits(words: Bytes) -> Bytes:
    """Return the bits of little-endian words of 32 bits, [..., 4] -> [..., 32]."""
    return np.unpackbits(words, axis=-1, bitorder="little")


def _shifted(codes: Bytes, width: int, shifts: tuple[int, ...], mask: int) -> Bytes:
    """Cut bytes into runs of `width`, each shifted by every shift: [N, B, w] -> [N, B x runs x shifts, width]."""
    runs = codes.reshape(len(codes), -1, 1, width) >> np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    cut: Bytes = (runs & np.uint8(mask)).reshape(len(codes), -1, width)
    return cut


def _q8_0(blocks: Bytes) -> BlockRows:
    return BlockRows(codes=_groups(blocks[..., 2:] ^ np.uint8(128)), d=_half(blocks, 0))


def _q4_0(blocks: Bytes) -> BlockRows:
    return BlockRows(codes=_groups(nibbles(blocks[..., 2:])), d=_half(blocks, 0))


def _q4_1(blocks: Bytes) -> BlockRows:
    return BlockRows(codes=_groups(nibbles(blocks[..., 4:])), d=_half(blocks, 0), m=_half(blocks, 2))


def _q5_0(blocks: Bytes) -> BlockRows:
    codes = nibbles(blocks[..., 6:]) | _bits(blocks[..., 2:6]) << np.uint8(4)
    return BlockRows(codes=_groups(codes), d=_half(blocks, 0))


def _q5_1(blocks: Bytes) -> BlockRows:
    codes = nibbles(blocks[..., 8:]) | _bits(blocks[..., 4:8]) << np.uint8(4)
    return BlockRows(codes=_groups(codes), d=_half(blocks, 0), m=_half(blocks, 2))


def _with_minima(blocks: Bytes, codes: Bytes) -> BlockRows:
    """Return blocks that begin with d, m and eight scales and minima of six bits each in 12 bytes."""
    low, middle, high = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate((low & 63, (high & 15) | (low >> 2 & 48)), axis=-1)
    minima = np.concatenate((middle & 63, (high >> 4) | (middle >> 2 & 48)), axis=-1)
    rows = len(blocks)
    halves = {"d": _half(blocks, 0), "m": _half(blocks, 2)}
    return BlockRows(codes=codes, **halves, sub=scales.reshape(rows, -1), sub_m=minima.reshape(rows, -1))


def _q4_k(blocks: Bytes) -> BlockRows:
    return _with_minima(blocks, _shifted(blocks[..., 16:], 32, (0, 4), 15))


def _q5_k(blocks: Bytes) -> BlockRows:
    high = _shifted(blocks[..., 16:48], 32, tuple(range(8)), 1)
    return _with_minima(blocks, _shifted(blocks[..., 48:], 32, (0, 4), 15) | high << np.uint8(4))


def _q6_k(blocks: Bytes) -> BlockRows:
    codes = _groups(_shifted(blocks[..., :128], 64, (0, 4), 15))
    codes = codes | _shifted(blocks[..., 128:192], 32, (0, 2, 4, 6), 3) << np.uint8(4)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).reshape(len(blocks), -1)
    return BlockRows(codes=_groups(codes, 16), d=_half(blocks, 208), sub=scales)


def _q3_k(blocks: Bytes) -> BlockRows:
    low = _shifted(blocks[..., 32:96], 32, (0, 2, 4, 6), 3)
    high = _shifted(blocks[..., :32], 32, tuple(range(8)), 1)
    codes = low + (high << np.uint8(2)) + np.uint8(28)  # -4..3 as -32..31 of Q6_K
    packed = blocks[..., 96:108]
    shifts = np.array((0, 2, 4, 6), np.uint8)[:, None]
    upper = (packed[..., None, 8:] >> shifts & np.uint8(3)).reshape(*packed.shape[:2], 16)
    scales = (nibbles(packed[..., :8]) | upper << np.uint8(4)).view(np.int8) - np.int8(32)
    return BlockRows(codes=_groups(codes, 16), d=_half(blocks, 108), sub=scales.reshape(len(blocks), -1))


def _iq4_xs(blocks: Bytes) -> BlockRows:
    upper = np.ascontiguousarray(blocks[..., 2:4]).view("<u2")
    high = (upper >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    low = (blocks[..., 4:8, None] >> np.array((0, 4), np.uint8) & np.uint8(15)).reshape(high.shape)
    scales = (low | high << np.uint8(4)).view(np.int8) - np.int8(32)
    codes = nibbles(blocks[..., 8:].reshape(*blocks.shape[:2], 8, 16))
    return BlockRows(codes=_groups(codes), d=_half(blocks, 0), sub=scales.reshape(len(blocks), -1))


def _mxfp4(blocks: Bytes) -> BlockRows:
    # Half of the power of two, since the table has twice the numbers: bfloat16 holds it, as a subnormal if need be.
    exponent = blocks[..., 0].astype(np.uint16)
    bits = np.where(exponent < 2, np.uint16(0x20) << exponent, (exponent - np.uint16(1)) << np.uint16(7))
    return BlockRows(codes=_groups(nibbles(blocks[..., 1:])), d=bits.astype("<u2").view(ml_dtypes.bfloat16))


def _iq3_s(blocks: Bytes) -> BlockRows:
    integers, scales = iq3_s(blocks)
    codes = (integers + np.int8(32)).view(np.uint8)
    return BlockRows(codes=_groups(codes, 16), d=_half(blocks, 0), sub=np.repeat(scales.reshape(len(blocks), -1), 2, 1))


def _q2_k(blocks: Bytes) -> F32:
    """Return the numbers of blocks [n, 84], f32 [n, 256]. No format of ours has minima for 16 inputs."""
    scales = blocks[:, :16]
    codes = _shifted(blocks[:, 16:80], 32, (0, 2, 4, 6), 3).reshape(len(blocks), 16, 16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        factor = _half(blocks, 80)[:, None].astype(np.float32) * (scales & 15).astype(np.float32)
        offset = _half(blocks, 82)[:, None].astype(np.float32) * (scales >> 4).astype(np.float32)
        numbers: F32 = (factor[..., None] * codes - offset[..., None]).reshape(len(blocks), 256)
    return numbers


# ---- GGUF types whose codes number the points of a codebook: IQ3_S and IQ3_XXS ----
#
# A point has four magnitudes, each of eight possible ones. A codebook is the set of its points in ascending order, the
# last number first. Layouts and points: ggml's `ggml-common.h` and `ggml-quants.c`.

_MAGNITUDES: Final = {
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
}

_IQ3_S: Final = (
    b"r&l8gr3wX-7bA%x5C9?sqe&tWqzV8D2qFba5CwoD0f-U=2?78C6aYmCq5wb$Knef?00aO66#zvD01*HH7pnzQ08j!1OA!JI0tEm;0i+QG2_O"
    b"Lkk_mzl0ssU7C=>t+L=gZ00to^I00IC2005ByPyhe`3Izfn0ssU7t5u2xDg}Tk1&JgQ1Ofm6k^l;U0*C+-B?1%*1OY$*f&d950ssIc5CQ~%0"
    b"SEvAg#ZEo03ZSYAOb)E2mt^91gZoolmZ9>Di8_)0RRC+0R#aQ009610uhP<iXZ?82tot`00a>L0tFxh5I_J306+i$0ssI23IGKl000005d@J"
    b"00s#O4gbD;92qFLg3Lydr0e}Pn5DEn%000001pp9$0RR93pa22@000C400;mO0003103iSY2m$~A1Q7%Pkpw^xDg*)q000040Rjj?00;m8ga"
    b"Lp65CR|w5&!`NKmY&$00ck)015yA000001ONa46aWMO0000004e|q000310RVvj000mG00aOK1Rw+f0T2QJ0RR91001BW2mk~C2><{P00031"
    b"AOHXW0RR91015yA00000kpKli0T2WL1OgBMC;$Ke5<vn100IC21ONae00;m8A_xHh00961000C41ONa41ONa6000000RR9100000"
)
_IQ3_XXS: Final = (
    b"6^aD{1ONai3I!qs0uTTJ6#@l{0D=G@f(0M|0000100;np5P$$Ef&c&n00aO40000W000mG08sz{2mk^A3Iz%kfB^si1p);C000003IzfI000"
    b"041pom8Kmb4hA^-pY00961000pHKmY&&AOHXW00000000C40RR911qww11ONa4Dg^=o004*q1%d^D0U!VX0ucZJ0000H0000W00;m82mpWp0"
    b"ssII00000000003P1n=AOHXW0tE^H00AHb1pom8Pyhe`3IQMh00aO800ICA0000000001fB*mlK>!2*03ZMW01yB`000O800008000315P$%"
    b"n0Ehqp000000000G0004i0RTY&fB*mhAOHXW5C8xG00IyI001BW2mk;90000000000AO!#c0000000aO40ssI3K>$Di03ZMW01yBK000041O"
    b"Na400;m800D>q000041ONa6000000000000961000mG1ONa4000mGPyi4B00062000620Du4h000mG0000%00000000005C8xGAOHXW00aO4"
    b"00008000002mk^A00000r~v>300aO4002M$0RR9100aO4AOrva0U!Vf00031000620ssI21pp8L0000000001000000000000000"
)
_POINTS: Final = {"IQ3_S": _IQ3_S, "IQ3_XXS": _IQ3_XXS}
"""A bit for each of 8^4 points, the lowest first: whether it is in the codebook."""


@cache
def _codebook(kind: str) -> Bytes:
    """Return the points of a type, [points, 4]."""
    held = np.flatnonzero(np.unpackbits(np.frombuffer(b85decode(_POINTS[kind]), np.uint8), bitorder="little"))
    points: Bytes = np.array(_MAGNITUDES[kind], np.uint8)[held[:, None] >> np.array((0, 3, 6, 9)) & 7]
    return points


def _signed(magnitudes: Bytes, negative: Bytes) -> NDArray[np.int8]:
    return np.where(negative.reshape(magnitudes.shape) != 0, -magnitudes.view(np.int8), magnitudes.view(np.int8))


def _index_bits(words: Bytes) -> Bytes:
    return np.unpackbits(words, axis=-1, bitorder="little")


def iq3_s(blocks: Bytes) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Return the integers of blocks [N, B, 110], [N, B, 256], and their scales by 32 of them, [N, B, 8].

    A number is d times the scale times the integer.
    """
    points = blocks[..., 2:66] | _index_bits(blocks[..., 66:74]).astype(np.uint16) << np.uint16(8)
    magnitudes = _codebook("IQ3_S")[points].reshape(*blocks.shape[:2], 256)
    fours = blocks[..., 106:110, None] >> np.array((0, 4), np.uint8) & np.uint8(15)
    scales = (fours << np.uint8(1) | np.uint8(1)).reshape(*blocks.shape[:2], 8)
    return _signed(magnitudes, _index_bits(blocks[..., 74:106])), scales.view(np.int8)


def iq3_xxs(blocks: Bytes) -> F32:
    """Return the numbers of blocks [n, 98], f32 [n, 256].

    A number is d / 4 times an odd scale times an integer up to 62. No block format holds d / 4, or d / 2 and integers
    up to 31: both leave float16 where d is small, as it is in most models.
    """
    magnitudes = _codebook("IQ3_XXS")[blocks[:, 2:66]].reshape(len(blocks), 8, 4, 8)
    words = np.ascontiguousarray(blocks[:, 66:]).view("<u4")  # [n, 8]: four times seven signs, and a scale
    seven = _index_bits((words[..., None] >> np.array((0, 7, 14, 21), np.uint32)).astype(np.uint8)[..., None])[..., :7]
    even = np.bitwise_xor.reduce(seven, axis=-1, keepdims=True)  # the number of minus signs is even
    integers = _signed(magnitudes, np.concatenate((seven, even), axis=-1)).astype(np.float32)
    d = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    with np.errstate(invalid="ignore"):
        scales = d * ((words >> np.uint32(28)).astype(np.float32) + np.float32(0.5)) * np.float32(0.5)
        numbers: F32 = (integers.reshape(len(blocks), 8, 32) * scales[..., None]).reshape(len(blocks), 256)
    return numbers


_NUMBERS: Final[dict[str, Callable[[Bytes], F32]]] = {"Q2_K": _q2_k, "IQ3_XXS": iq3_xxs}
"""Readers of types that no format holds: blocks [n, nbytes] -> f32 [n, numbers]."""

GGUF_TYPES: Final[dict[str, GgufType]] = {
    "F32": GgufType(1, 4),
    "F16": GgufType(1, 2),
    "BF16": GgufType(1, 2),
    "Q8_0": GgufType(32, 34, "q8_0", _q8_0),
    "Q4_0": GgufType(32, 18, "q4_0", _q4_0),
    "Q4_1": GgufType(32, 20, "q4_1", _q4_1),
    "Q5_0": GgufType(32, 22, "q5_0", _q5_0),
    "Q5_1": GgufType(32, 24, "q5_1", _q5_1),
    "Q2_K": GgufType(256, 84),
    "Q3_K": GgufType(256, 110, "q6_k", _q3_k),
    "Q4_K": GgufType(256, 144, "q4_k", _q4_k),
    "Q5_K": GgufType(256, 176, "q5_k", _q5_k),
    "Q6_K": GgufType(256, 210, "q6_k", _q6_k),
    "IQ3_XXS": GgufType(256, 98),
    "IQ3_S": GgufType(256, 110, "q6_k", _iq3_s),
    "IQ4_NL": GgufType(32, 18, "iq4_nl", _q4_0),
    "IQ4_XS": GgufType(256, 136, "iq4_xs", _iq4_xs),
    "MXFP4": GgufType(32, 17, "mxfp4", _mxfp4),
}
"""The types that are read, by the names that files and programs use."""

TYPE_NAMES: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
"""Names of the codes of types, also of those that are not read."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GgufWeight(BlockWeight):
    """A `BlockWeight` over the blocks of a file, converted when they are used.

    Attributes:
        type: a key of `GGUF_TYPES`.
        blocks: uint8 [N, B, bytes]; may be a read-only view of a mapped file.
    """

    type: str
    blocks: Bytes

    @property
    def gguf(self) -> tuple[str, Bytes]:
        return self.type, self.blocks

    def select(self, rows: slice | NDArray[Any]) -> GgufWeight:
        return weight_of(self.type, self.blocks[rows])

    def folded(self, width: int) -> GgufWeight:
        rows = self.shape[0] * (self.shape[1] // width)
        return weight_of(self.type, self.blocks.reshape(rows, -1, self.blocks.shape[2]))

    def stored(self, rows: slice | NDArray[Any]) -> BlockRows:
        read = GGUF_TYPES[self.type].rows
        assert read is not None, "a format holds the type"
        return read(self.blocks[rows])


def weight_of(type: str, blocks: Bytes) -> GgufWeight:
    """Return a matrix of blocks [N, B, bytes] of a type that a format holds."""
    found = GGUF_TYPES[type]
    assert found.format is not None, "a format holds the type"
    shape = len(blocks), blocks.shape[1] * found.numbers
    return GgufWeight(kind=BLOCK_FORMATS[found.format], shape=shape, type=type, blocks=blocks)


def stacked(weights: Sequence[BlockWeight]) -> BlockWeight:
    """Return the rows of matrices of one format and width, one after another."""
    first = weights[0]
    if len(weights) == 1:
        return first
    from_files = [each for each in weights if isinstance(each, GgufWeight)]
    if len(from_files) == len(weights) and len({each.type for each in from_files}) == 1:
        return weight_of(from_files[0].type, np.concatenate([each.blocks for each in from_files]))
    whole = BlockRows.joined([each.stored(slice(None)) for each in weights])
    return row_weight(first.kind, first.shape[1], whole)


def dequantize(kind: str, blocks: Bytes) -> F32:
    """Return the numbers of blocks [N, B, bytes], f32 [N, K], exactly as ggml's reference computes them."""
    if kind in _FLOATS:
        floats: F32 = np.ascontiguousarray(blocks).view(_FLOATS[kind]).astype(np.float32)
        return floats.reshape(len(blocks), -1)
    if kind in _NUMBERS:
        return _NUMBERS[kind](blocks.reshape(-1, blocks.shape[2])).reshape(len(blocks), -1)
    return weight_of(kind, blocks).dequantize()
