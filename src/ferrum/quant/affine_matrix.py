"""Matrices of integers with a scale and a bias for each group, as MLX has them.

    weight[n, k] = code[n, k] * scale[n, g] + bias[n, g]      g = k // group

The sum is rounded once, to float32. Such a matrix becomes a block format if one holds exactly its numbers, else
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import F32, Bytes
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import BlockRows, RowWeight
from ferrum.quant.dense import by_rows
from ferrum.quant.integer_matrix import fits_float16, smallest, spread

_FORMATS: Final = ("q4_1", "q4_m64", "q4_m128")
_BITS: Final = 4


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AffineMatrix:
    """A matrix as a file stores it. Its arrays are read when they are used.

    Attributes:
        shape: (N, K).
        bits: of a code.
        group: inputs with a common scale, a multiple of 32 that divides K.
        codes: returns the codes, uint8 [N, K].
        scales, biases: return floats [N, G].
    """

    shape: tuple[int, int]
    bits: int
    group: int
    codes: Callable[[], Bytes]
    scales: Callable[[], NDArray[Any]]
    biases: Callable[[], NDArray[Any]]

    def obstacle(self) -> str | None:
        """Return why no block format holds the matrix; None if one does."""
        if self.bits > _BITS:
            return f"integers of {self.bits} bits with biases"
        if not fits_float16(self.biases()) or not fits_float16(self._used_scales()):
            return "scales or biases that float16 does not hold"
        return None

    def format(self) -> str | None:
        """Return the name of the block format that holds the matrix in the fewest bytes, or None."""
        return smallest(list(_FORMATS), self.group, self.shape[1]) if self.obstacle() is None else None

    def blocks(self) -> RowWeight:
        """Return the matrix in its block format, which it must have."""
        found = self.format()
        assert found is not None, "a block format holds the matrix"
        kind, (outputs, inputs) = BLOCK_FORMATS[found], self.shape
        count = kind.blocks(inputs)
        codes = np.zeros((outputs, count * kind.block), np.uint8)
        codes[:, :inputs] = self.codes()
        scales, biases = (
            spread(each.astype(np.float16), self.group // kind.block, count)
            for each in (self._used_scales(), self.biases())
        )
        rows = BlockRows(codes=codes.reshape(outputs, count * kind.groups, kind.group), d=scales, m=biases)
        return RowWeight(kind=kind, shape=self.shape, whole=rows)

    def floats(self) -> F32:
        """Return the matrix, f32 [N, K]; products and sums are rounded once."""
        codes, scales, biases = self.codes(), self.scales().astype(np.float32), self.biases().astype(np.float32)
        groups = np.arange(self.shape[1]) // self.group

        def convert(rows: slice) -> F32:
            products: F32 = codes[rows].astype(np.float32) * scales[rows][:, groups]
            return products + biases[rows][:, groups]

        return by_rows(self.shape, convert)

    def _used_scales(self) -> NDArray[Any]:
        """Return the scales, with 0 in place of one that multiplies only zeros: MLX has 1e-7 there."""
        scales = self.scales()
        if fits_float16(scales):
            return scales
        used = self.codes().reshape(*scales.shape, self.group).any(axis=2)
        return np.where(used, scales.astype(np.float32), np.float32(0))
