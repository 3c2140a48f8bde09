"""The block types of GGUF files: their bytes to `BlockRows`, without a change of any number.

A block is some numbers of a row with common scales. Bit layouts: ggml's `ggml-common.h` and `ggml-quants.c`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import F32, Bytes
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockRows, BlockWeight, FilePanelWeight, FileWeight, file_weight, row_weight
from ferrum.quant.low_bits import LOW_BITS

_FLOATS: Final = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True, slots=True)
class GgufType:
    """A type of GGUF tensors.

    Attributes:
        numbers: of a block.
        nbytes: of a block.
        format: that holds its numbers, a key of `BLOCK_FORMATS`; None for floats.
        rows: blocks [N, B, nbytes] -> `BlockRows` of that format; None for floats and the types of `low_bits.py`.
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


GGUF_TYPES: Final[dict[str, GgufType]] = {
    "F32": GgufType(1, 4),
    "F16": GgufType(1, 2),
    "BF16": GgufType(1, 2),
    "Q8_0": GgufType(32, 34, "q8_0", _q8_0),
    "Q4_0": GgufType(32, 18, "q4_0", _q4_0),
    "Q4_1": GgufType(32, 20, "q4_1", _q4_1),
    "Q5_0": GgufType(32, 22, "q5_0", _q5_0),
    "Q5_1": GgufType(32, 24, "q5_1", _q5_1),
    "Q4_K": GgufType(256, 144, "q4_k", _q4_k),
    "Q5_K": GgufType(256, 176, "q5_k", _q5_k),
    "Q6_K": GgufType(256, 210, "q6_k", _q6_k),
    "IQ4_NL": GgufType(32, 18, "iq4_nl", _q4_0),
    "IQ4_XS": GgufType(256, 136, "iq4_xs", _iq4_xs),
    "MXFP4": GgufType(32, 17, "mxfp4", _mxfp4),
    **{name.upper(): GgufType(low.inputs, low.nbytes, name) for name, low in LOW_BITS.items()},
}
"""The types that are read, by the names that files and programs use."""

TYPE_NAMES: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
    41: "Q1_0",
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

    def select(self, rows: slice | NDArray[Any]) -> BlockWeight:
        return weight_of(self.type, self.blocks[rows])

    def folded(self, width: int) -> BlockWeight:
        rows = self.shape[0] * (self.shape[1] // width)
        return weight_of(self.type, self.blocks.reshape(rows, -1, self.blocks.shape[2]))

    def stored(self, rows: slice | NDArray[Any]) -> BlockRows:
        read = GGUF_TYPES[self.type].rows
        assert read is not None, "a format holds the type"
        return read(self.blocks[rows])


def weight_of(type: str, blocks: Bytes) -> FileWeight | GgufWeight:
    """Return a matrix of blocks [N, B, bytes] of a type that a format holds."""
    found = GGUF_TYPES[type]
    assert found.format is not None, "a format holds the type"
    if found.rows is None:
        return file_weight(BLOCK_FORMATS[found.format], blocks)
    shape = len(blocks), blocks.shape[1] * found.numbers
    return GgufWeight(kind=BLOCK_FORMATS[found.format], shape=shape, type=type, blocks=blocks)


def stacked(weights: Sequence[BlockWeight]) -> BlockWeight:
    """Return the rows of matrices of one format and width, one after another."""
    first = weights[0]
    if len(weights) == 1:
        return first
    if first.kind.low is not None:
        whole = [each for each in weights if isinstance(each, FileWeight | FilePanelWeight)]
        files = [each if isinstance(each, FileWeight) else each.select(slice(None)) for each in whole]
        outputs = [each.outputs for each in files if each.outputs is not None]
        blocks = np.concatenate([each.blocks for each in files])
        return file_weight(first.kind, blocks, first.shape[1], np.concatenate(outputs) if outputs else None)
    from_files = [each for each in weights if isinstance(each, GgufWeight)]
    if len(from_files) == len(weights) and len({each.type for each in from_files}) == 1:
        return weight_of(from_files[0].type, np.concatenate([each.blocks for each in from_files]))
    rows = BlockRows.joined([each.stored(slice(None)) for each in weights])
    return row_weight(first.kind, first.shape[1], rows)


def dequantize(kind: str, blocks: Bytes) -> F32:
    """Return the numbers of blocks [N, B, bytes], f32 [N, K], exactly as ggml's reference computes them."""
    if kind in _FLOATS:
        floats: F32 = np.ascontiguousarray(blocks).view(_FLOATS[kind]).astype(np.float32)
        return floats.reshape(len(blocks), -1)
    return weight_of(kind, blocks).dequantize()
