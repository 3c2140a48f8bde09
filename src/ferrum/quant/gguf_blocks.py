"""The block formats of GGUF as numbers: every type that is read, dequantised exactly as ggml's reference does.

A block is some numbers of a row with common scales. Formulas and bit layouts: ggml's `ggml-common.h` and
`ggml-quants.c`; each operation here is a single f32 operation in the order written there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import ml_dtypes
import numpy as np

from ferrum.kernels.interface import F32, Bytes

"""Blocks [n, bytes]."""

_NL: Final = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32)
"""The 16 numbers of IQ4_NL and IQ4_XS."""

_FP4: Final = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.float32)
"""Twice the 16 numbers of FP4 (E2M1)."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A type of GGUF tensors.

    Attributes:
        numbers: of a block.
        nbytes: of a block.
        dequantize: blocks [n, nbytes] -> f32 [n, numbers].
    """

    numbers: int
    nbytes: int
    dequantize: Callable[[Bytes], F32]


def _half(blocks: Bytes, at: int) -> F32:
    """Return the f16 at a byte of each block, [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def nibbles(codes: Bytes) -> Bytes:
    """Return the low four bits of all bytes, then the high ones: [..., n] -> [..., 2n]."""
    return np.concatenate((codes & 15, codes >> 4), axis=-1)


def _bits(words: Bytes) -> Bytes:
    """Return the 32 bits of a little-endian word, [n, 4] -> [n, 32]."""
    return np.unpackbits(words, axis=1, bitorder="little")


def _f32(blocks: Bytes) -> F32:
    return np.ascontiguousarray(blocks).view(np.float32)


def _f16(blocks: Bytes) -> F32:
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _bf16(blocks: Bytes) -> F32:
    floats: F32 = np.ascontiguousarray(blocks).view(ml_dtypes.bfloat16).astype(np.float32)
    return floats


def _q8_0(blocks: Bytes) -> F32:
    codes: F32 = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
    return codes * _half(blocks, 0)


def _q4_0(blocks: Bytes) -> F32:
    return _half(blocks, 0) * (nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8))


def _q4_1(blocks: Bytes) -> F32:
    return _half(blocks, 0) * nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> F32:
    codes = nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return _half(blocks, 0) * (codes.astype(np.float32) - np.float32(16))


def _q5_1(blocks: Bytes) -> F32:
    codes = nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _shifted(codes: Bytes, width: int, shifts: tuple[int, ...], mask: int) -> Bytes:
    """Cut bytes into runs of `width`, each shifted by every shift: [n, w] -> [n, runs x shifts, width]."""
    runs = codes.reshape(len(codes), -1, 1, width) >> np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    cut: Bytes = (runs & np.uint8(mask)).reshape(len(codes), -1, width)
    return cut


def _scales_and_minima(packed: Bytes) -> tuple[F32, F32]:
    """Unpack eight scales and eight minima of six bits each from 12 bytes, [n, 8] each."""
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((low & 63, (high & 15) | (low >> 2 & 48)), axis=1)
    minima = np.concatenate((middle & 63, (high >> 4) | (middle >> 2 & 48)), axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _with_minima(blocks: Bytes, codes: Bytes) -> F32:
    """Return d * scale * code - dmin * minimum for codes [n, 8, 32] of a block that begins with these."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    factor, offset = _half(blocks, 0) * scales, _half(blocks, 2) * minima
    return (factor[..., None] * codes.astype(np.float32) - offset[..., None]).reshape(len(blocks), 256)


def _q4_k(blocks: Bytes) -> F32:
    return _with_minima(blocks, _shifted(blocks[:, 16:], 32, (0, 4), 15))


def _q5_k(blocks: Bytes) -> F32:
    high = _shifted(blocks[:, 16:48], 32, tuple(range(8)), 1)
    return _with_minima(blocks, _shifted(blocks[:, 48:], 32, (0, 4), 15) | high << np.uint8(4))


def _q6_k(blocks: Bytes) -> F32:
    codes = _shifted(blocks[:, :128], 64, (0, 4), 15).reshape(len(blocks), 8, 32)
    high = _shifted(blocks[:, 128:192], 32, (0, 2, 4, 6), 3)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    numbers = (codes | high << 4).astype(np.int8) - np.int8(32)
    factor = _half(blocks, 208) * scales
    return (factor[..., None] * numbers.reshape(len(blocks), 16, 16).astype(np.float32)).reshape(len(blocks), 256)


def _q2_k(blocks: Bytes) -> F32:
    scales = blocks[:, :16]
    factor = _half(blocks, 80) * (scales & 15).astype(np.float32)
    offset = _half(blocks, 82) * (scales >> 4).astype(np.float32)
    codes = _shifted(blocks[:, 16:80], 32, (0, 2, 4, 6), 3).reshape(len(blocks), 16, 16).astype(np.float32)
    return (factor[..., None] * codes - offset[..., None]).reshape(len(blocks), 256)


def _q3_k(blocks: Bytes) -> F32:
    low = _shifted(blocks[:, 32:96], 32, (0, 2, 4, 6), 3).astype(np.int8)
    high = _shifted(blocks[:, :32], 32, tuple(range(8)), 1)
    numbers = low - (high ^ 1).astype(np.int8) * np.int8(4)
    packed = blocks[:, 96:108]
    lower = nibbles(packed[:, :8])
    upper = (packed[:, None, 8:] >> np.array((0, 2, 4, 6), np.uint8)[:, None] & 3).reshape(len(blocks), 16)
    scales = (lower | upper << 4).astype(np.int8) - np.int8(32)
    factor: F32 = _half(blocks, 108) * scales.astype(np.float32)
    return (factor[..., None] * numbers.reshape(len(blocks), 16, 16).astype(np.float32)).reshape(len(blocks), 256)


def _iq4_nl(blocks: Bytes) -> F32:
    return _half(blocks, 0) * _NL[nibbles(blocks[:, 2:])]


def _iq4_xs(blocks: Bytes) -> F32:
    upper = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16)
    high = (upper >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    low = (blocks[:, 4:8, None] >> np.array((0, 4), np.uint8) & 15).reshape(len(blocks), 8)
    scales = (low | high << 4).astype(np.int8) - np.int8(32)
    factor = _half(blocks, 0) * scales.astype(np.float32)
    codes = nibbles(blocks[:, 8:].reshape(len(blocks), 8, 16))
    return (factor[..., None] * _NL[codes]).reshape(len(blocks), 256)


def _mxfp4(blocks: Bytes) -> F32:
    exponent = blocks[:, :1].astype(np.uint32)  # of half the scale, because the table holds twice the numbers
    bits = np.where(exponent < 2, np.uint32(0x00200000) << exponent, (exponent - np.uint32(1)) << np.uint32(23))
    return bits.astype(np.uint32).view(np.float32) * _FP4[nibbles(blocks[:, 1:])]


BLOCKS: Final[dict[str, BlockFormat]] = {
    "F32": BlockFormat(1, 4, _f32),
    "F16": BlockFormat(1, 2, _f16),
    "BF16": BlockFormat(1, 2, _bf16),
    "Q8_0": BlockFormat(32, 34, _q8_0),
    "Q4_0": BlockFormat(32, 18, _q4_0),
    "Q4_1": BlockFormat(32, 20, _q4_1),
    "Q5_0": BlockFormat(32, 22, _q5_0),
    "Q5_1": BlockFormat(32, 24, _q5_1),
    "Q2_K": BlockFormat(256, 84, _q2_k),
    "Q3_K": BlockFormat(256, 110, _q3_k),
    "Q4_K": BlockFormat(256, 144, _q4_k),
    "Q5_K": BlockFormat(256, 176, _q5_k),
    "Q6_K": BlockFormat(256, 210, _q6_k),
    "IQ4_NL": BlockFormat(32, 18, _iq4_nl),
    "IQ4_XS": BlockFormat(256, 136, _iq4_xs),
    "MXFP4": BlockFormat(32, 17, _mxfp4),
}
"""The types that are read, by the names that files and programs use."""

TYPE_NAMES: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
"""Names of the codes of types, also of those that are not read."""
