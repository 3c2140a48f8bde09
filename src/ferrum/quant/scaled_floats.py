"""Matrices of floats with 4 or 8 bits and common scales: FP8, NVFP4 and MXFP4 of safetensors directories.

FP8 is E4M3 of "FP8 Formats for Deep Learning" (Micikevicius et al., 2022), FP4 is E2M1 of the OCP Microscaling
specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import F32, Bytes
from ferrum.quant.bit_words import pairs
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockRows, FileWeight, RowWeight, file_weight
from ferrum.quant.dense import by_rows

_FP8: Final = BLOCK_FORMATS["fp8"]
_MXFP4: Final = BLOCK_FORMATS["mxfp4"]
_NVFP4: Final = BLOCK_FORMATS["nvfp4_scaled"]
_FP4: Final = np.array(_MXFP4.table, np.float32) / 2
"""The 16 numbers of FP4."""

_LARGEST: Final = 126
"""The bits of the largest FP8 number."""

_PIECE: Final = 1 << 22
"""Codes converted at a time."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Float8Matrix:
    """A matrix of FP8 numbers with a scale for each tile. Its arrays are read when they are used.

    Attributes:
        shape: (N, K).
        tile: outputs and inputs with a common scale; the last tiles may be incomplete.
        stored: returns the numbers [N, K] of ml_dtypes' float8_e4m3fn.
        scales: returns the scales, f32 [tiles of outputs, tiles of inputs].
    """

    shape: tuple[int, int]
    tile: tuple[int, int]
    stored: Callable[[], NDArray[Any]]
    scales: Callable[[], F32]

    def obstacle(self) -> str | None:
        """Return why no block format holds the matrix; None if one does."""
        if self.tile[1] % _FP8.group and self.tile[1] < self.shape[1]:
            return f"tiles of {self.tile[1]} inputs"
        return None

    def format(self) -> str | None:
        """Return the name of the block format that holds the matrix, or None."""
        return _FP8.name if self.obstacle() is None else None

    def blocks(self) -> RowWeight:
        """Return the matrix in its block format, which it must have."""
        assert self.format() is not None, "a block format holds the matrix"
        (outputs, inputs), count = self.shape, _FP8.blocks(self.shape[1])
        codes: Bytes = self.stored().view(np.uint8)
        if inputs % _FP8.group:
            codes = np.pad(codes, ((0, 0), (0, -inputs % _FP8.group)))
        codes = codes.reshape(outputs, count, _FP8.group)
        tiles = np.arange(outputs) // self.tile[0], np.arange(count) * _FP8.group // self.tile[1]
        scales: F32 = self.scales()[tiles[0]][:, tiles[1]]
        step = max(1, _PIECE // inputs)
        for begin in range(0, outputs, step):
            rows = slice(begin, begin + step)
            scales[rows][(codes[rows] & np.uint8(127) == 127).any(axis=2)] = np.nan
        return RowWeight(kind=_FP8, shape=self.shape, whole=BlockRows(codes=codes, d=scales))

    def floats(self) -> F32:
        """Return the matrix, f32 [N, K]."""
        stored, scales = self.stored(), self.scales()
        outer, inner = (np.arange(length) // tile for length, tile in zip(self.shape, self.tile, strict=True))

        def convert(rows: slice) -> F32:
            numbers: F32 = stored[rows].astype(np.float32)
            return numbers * scales[outer[rows]][:, inner]

        return by_rows(self.shape, convert)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Nvfp4Matrix:
    """A matrix of FP4 numbers with an FP8 scale for each 16 inputs. Its arrays are read when they are used.

    Attributes:
        shape: (N, K).
        packed: returns pairs of FP4 numbers, the first in the low four bits, uint8 [N, K / 2].
        scales: returns the bits of the scales, uint8 [N, K / 16].
        common: returns the factor and the divisor of all scales, f32.
    """

    shape: tuple[int, int]
    packed: Callable[[], Bytes]
    scales: Callable[[], Bytes]
    common: Callable[[], tuple[float, float]]

    def obstacle(self) -> str | None:
        """Return why no block format holds the matrix; None if one does."""
        return "negative scales, or NaN" if (self.scales() > _LARGEST).any() else None

    def format(self) -> str | None:
        """Return the name of the block format that holds the matrix, or None."""
        return _NVFP4.name if self.obstacle() is None else None

    def blocks(self) -> FileWeight:
        """Return the matrix in its block format, which it must have."""
        assert self.format() is not None, "a block format holds the matrix"
        (outputs, inputs), count, groups = self.shape, _NVFP4.blocks(self.shape[1]), self.shape[1] // _NVFP4.group
        blocks = np.empty((outputs, count, _NVFP4.groups + _NVFP4.block // 2), np.uint8)
        packed, scales, rest = self.packed(), self.scales(), -groups % _NVFP4.groups
        step = max(1, _PIECE // inputs)
        for begin in range(0, outputs, step):
            rows = slice(begin, begin + step)
            halves = pairs(packed[rows]).reshape(-1, groups, 2, _NVFP4.group // 2)  # the first and the last inputs
            codes = halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)
            blocks[rows, :, : _NVFP4.groups] = np.pad(scales[rows], ((0, 0), (0, rest))).reshape(
                -1, count, _NVFP4.groups
            )
            blocks[rows, :, _NVFP4.groups :] = np.pad(codes, ((0, 0), (0, rest), (0, 0))).reshape(len(codes), count, -1)
        common = np.array(self.common(), np.float32)
        return file_weight(_NVFP4, blocks, inputs, np.broadcast_to(common, (outputs, 2)))

    def floats(self) -> F32:
        """Return the matrix, f32 [N, K]; each scale and each product are rounded once."""
        packed, scales = self.packed(), self.scales().view(ml_dtypes.float8_e4m3fn)
        factor, divisor = (np.float32(each) for each in self.common())

        def convert(rows: slice) -> F32:
            with np.errstate(divide="ignore"):
                own = scales[rows].astype(np.float32) * factor / divisor
            numbers: F32 = _FP4[pairs(packed[rows])] * np.repeat(own, _NVFP4.group, axis=1)
            return numbers

        return by_rows(self.shape, convert)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Mxfp4Matrix:
    """A matrix of FP4 numbers with a power of two for each 32 inputs. Its arrays are read when they are used.

    Attributes:
        shape: (N, K).
        packed: returns pairs of FP4 numbers, the first in the low four bits, uint8 [N, K / 2].
        exponents: returns the powers' exponents + 127, uint8 [N, K / 32].
    """

    shape: tuple[int, int]
    packed: Callable[[], Bytes]
    exponents: Callable[[], Bytes]

    def obstacle(self) -> None:
        """Return None: a block format holds the matrix."""
        return

    def format(self) -> str:
        """Return the name of the block format that holds the matrix."""
        return _MXFP4.name

    def blocks(self) -> RowWeight:
        """Return the matrix in its block format."""
        packed = self.packed().reshape(self.shape[0], -1, _MXFP4.group // 2)
        return RowWeight(kind=_MXFP4, shape=self.shape, whole=mxfp4_rows(packed, self.exponents()))

    def floats(self) -> F32:
        """Return the matrix, f32 [N, K]."""
        return self.blocks().dequantize()


def mxfp4_rows(packed: Bytes, exponents: Bytes) -> BlockRows:
    """Return MXFP4 of safetensors files as blocks; gpt-oss has a matrix for each expert.

    Args:
        packed: uint8 [N, K / 32, 16], pairs of consecutive inputs, the first in the low four bits (`..._blocks`).
        exponents: uint8 [N, K / 32] (`..._scales`).
    """
    # Half of the power of two, since the format's table has twice the numbers. bfloat16 holds 2^-128 as a subnormal.
    powers = np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)
    return BlockRows(codes=pairs(packed), d=powers.astype(_MXFP4.scale))
