"""Matrices of floats with 4 or 8 bits and common scales: FP8, NVFP4 and MXFP4 of safetensors directories.

FP8 is E4M3 of "FP8 Formats for Deep Learning" (Micikevicius et al., 2022), FP4 is E2M1 of the OCP Microscaling
specification. No block format holds FP8 or NVFP4: they become float32, where each product is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import F32, Bytes
from ferrum.quant.bit_words import pairs
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockRows, RowWeight
from ferrum.quant.dense import by_rows

_MXFP4: Final = BLOCK_FORMATS["mxfp4"]
_FP4: Final = np.array(_MXFP4.table, np.float32) / 2
"""The 16 numbers of FP4."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScaledFloats:
    """A matrix of floats with a scale for each tile. Its arrays are read when they are used.

    Attributes:
        shape: (N, K).
        tile: outputs and inputs with a common scale; the last tiles may be incomplete.
        stored: returns FP8 numbers [N, K] of a dtype in `ml_dtypes`, or pairs of FP4 numbers, uint8 [N, K / 2].
        scales: returns the scales, f32 [tiles of outputs, tiles of inputs].
    """

    shape: tuple[int, int]
    tile: tuple[int, int]
    stored: Callable[[], NDArray[Any]]
    scales: Callable[[], F32]

    def obstacle(self) -> str:
        """Return why no block format holds the matrix."""
        return "FP8 or NVFP4 weights"

    def format(self) -> None:
        """Return None: no block format holds the matrix."""
        return

    def blocks(self) -> RowWeight:
        """Raise an error: see `format`."""
        raise AssertionError("no block format holds the matrix")

    def floats(self) -> F32:
        """Return the matrix, f32 [N, K]."""
        stored, scales = self.stored(), self.scales()
        outer, inner = (np.arange(length) // tile for length, tile in zip(self.shape, self.tile, strict=True))

        def convert(rows: slice) -> F32:
            part = stored[rows]
            numbers: NDArray[Any] = _FP4[pairs(part)] if part.dtype == np.uint8 else part.astype(np.float32)
            return np.asarray(numbers * scales[outer[rows]][:, inner], np.float32)

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
