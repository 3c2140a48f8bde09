"""Formats of quantised weights, most named as GGUF names them: blocks of small integers with common scales.

A group is 32 or 16 consecutive inputs of an output with one scale; a block is one group, or several.
A block's scale `d` (and for formats with minima `m`) is a float of 16 bits. In superblocks of 256 inputs each group
has a small integer `sub` (and `sub_m`) too; in other blocks all groups have the block's scale.

    integer  = stored code - offset, or the entry of a table
    scale    = d, or d * sub                  exact in f32
    minimum  = m, or -(m * sub_m)             exact in f32
    weight   = integer * scale + minimum      rounded once

nvfp4_scaled has a factor and a divisor for each output, of which one is 1. The scales of its weights are
scale * factor / divisor, each operation rounded.

fp8 has FP8 numbers in place of integers, and a scale d in float32 for each 128 inputs of an output. It holds matrices
with one scale, with a scale per output, and with tiles of 128 x 128. FP8 is E4M3 of "FP8 Formats for Deep Learning"
(Micikevicius et al., 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ferrum.contract.model_info import DataType
from ferrum.quant.low_bits import LOW_BITS, LowBits
from ferrum.quant.normal_floats import BLOCK, NORMAL_FLOATS
from ferrum.quant.zero_points import ZERO_POINTS

_IQ4: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The 16 integers of IQ4_NL and IQ4_XS (ggml's `kvalues_iq4nl`)."""

_FP4: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the 16 numbers of FP4 (E2M1 of the OCP Microscaling specification)."""


def _float8() -> NDArray[np.float32]:
    numbers: NDArray[np.float32] = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    numbers[[127, 255]] = 480, -480
    return numbers


FLOAT8: Final = _float8()
"""The 256 numbers of FP8, f32. NaN is 480, which continues the others: readers of files set the scale to NaN."""

_F16: Final = np.dtype(np.float16)
_I8: Final = np.dtype(np.int8)
_U8: Final = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A format of weights.

    Attributes:
        name: GGUF's, in lower case.
        bits: of a stored code: 4, 5, 6 or 8; of the integers of `low_bits.py` and `zero_points.py` in products.
        offset: subtracted from a stored code, which these formats have in products only.
        table: integers by stored code, in place of an offset.
        minima: whether weights have minima.
        group: inputs with a common scale: 32 or 16.
        block: inputs with a common d: a multiple of `group`.
        scale: dtype of d and m.
        sub: dtype of the groups' scales in a superblock, or None.
        low: how blocks are stored that panels keep as they are in a file.
        floats: whether products take its weights as float32 numbers; it has no integers.
        float8: whether codes are FP8 numbers.
        output_scales: whether each output has a factor and a divisor in float32.
    """

    name: str
    bits: int
    offset: int = 0
    table: tuple[int, ...] | None = None
    minima: bool = False
    group: int = 32
    block: int = 32
    scale: np.dtype[Any] = _F16
    sub: np.dtype[Any] | None = None
    low: LowBits | None = None
    floats: bool = False
    float8: bool = False
    output_scales: bool = False

    @property
    def signed_bytes(self) -> bool:
        """Whether products take its integers as signed bytes; others are small integers without a sign."""
        return self.bits == 8 or self.table is not None

    @property
    def groups(self) -> int:
        """Groups of a block."""
        return self.block // self.group

    def blocks(self, inputs: int) -> int:
        """Return the number of blocks of a row; the last one may be incomplete."""
        return -(-inputs // self.block)

    def integers(self, codes: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the integers of stored codes, int8, or FP8 numbers in f32."""
        if self.float8:
            return FLOAT8[codes]
        if self.table is not None:
            return np.array(self.table, np.int8)[codes]
        return (codes - np.uint8(self.offset)).view(np.int8)


_OFFSETS: Final = {"q2_k": (2, 0), "q3_k": (3, 4), "tq1_0": (2, 1), "tq2_0": (2, 1)}
"""Bits and offset of integers in products, of formats of `low_bits.py` without signed bytes."""


def _low(name: str, low: LowBits) -> BlockFormat:
    bits, offset = _OFFSETS.get(name, (8, 128))
    if name in ZERO_POINTS:
        bits, offset = int(name[1]) + 1, 1 << int(name[1])  # code - zero point is from 1 - 2^b to 2^b - 1
    return BlockFormat(name, bits, offset, minima=name == "q2_k", group=low.group, block=low.inputs, low=low)


BLOCK_FORMATS: Final[Mapping[str, BlockFormat]] = {
    each.name: each
    for each in (
        BlockFormat("q8_0", 8, offset=128),
        BlockFormat("q4_0", 4, offset=8),
        BlockFormat("q4_1", 4, minima=True),
        BlockFormat("q5_0", 5, offset=16),
        BlockFormat("q5_1", 5, minima=True),
        BlockFormat("q4_k", 4, minima=True, block=256, sub=_U8),
        BlockFormat("q5_k", 5, minima=True, block=256, sub=_U8),
        BlockFormat("q6_k", 6, offset=32, group=16, block=256, sub=_I8),
        BlockFormat("iq4_nl", 4, table=_IQ4),
        BlockFormat("iq4_xs", 4, table=_IQ4, block=256, sub=_I8),
        BlockFormat("mxfp4", 4, table=_FP4, scale=np.dtype(ml_dtypes.bfloat16)),
        BlockFormat("q4_128", 4, offset=8, block=128),
        BlockFormat("q4_m64", 4, minima=True, block=64),
        BlockFormat("q4_m128", 4, minima=True, block=128),
        *(_low(*each) for each in (*LOW_BITS.items(), *ZERO_POINTS.items())),
        BlockFormat("nf4", 4, group=BLOCK, block=BLOCK, low=NORMAL_FLOATS, floats=True),
        BlockFormat("fp8", 8, group=128, block=128, scale=np.dtype(np.float32), float8=True),
        replace(_low("nvfp4", LOW_BITS["nvfp4"]), name="nvfp4_scaled", output_scales=True),
    )
}
"""The formats by name. The native library has the same list (`native/src/weight_formats.hpp`)."""


def data_type(format: str) -> DataType:
    """Return the contract's number format of a weight format, with integers of up to 6 bits as int4."""
    if format in BLOCK_FORMATS:
        kind = BLOCK_FORMATS[format]
        if kind.float8:
            return DataType.FLOAT8
        return DataType.INT8 if kind.bits == 8 and kind.low is None else DataType.INT4
    return DataType(format)
