"""Matrices of 4-bit floats with a scale for each run of numbers, as bitsandbytes has them.

    weight = table[code] * scale      rounded once, to float32

Runs go on over the ends of rows. Such a matrix becomes NF4 blocks if they hold exactly its numbers, else float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ferrum.kernels.operations import F32, Bytes
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import FileWeight, file_weight
from ferrum.quant.dense import by_rows
from ferrum.quant.normal_floats import BLOCK, NF4, blocks_of

_NF4: Final = BLOCK_FORMATS["nf4"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NormalMatrix:
    """A matrix as a file stores it. Its arrays are read when they are used.

    Attributes:
        shape: (N, K).
        run: numbers with a common scale.
        packed: returns pairs of codes, the first in the high four bits, uint8 [N x K / 2].
        scales: returns the scales, f32 [runs].
        table: returns the sixteen numbers, f32.
    """

    shape: tuple[int, int]
    run: int
    packed: Callable[[], Bytes]
    scales: Callable[[], F32]
    table: Callable[[], F32]

    def obstacle(self) -> str | None:
        """Return why no block format holds the matrix; None if one does."""
        if not np.array_equal(self.table(), NF4):
            return "4-bit floats other than NF4"
        if self.run % BLOCK or self.shape[1] % BLOCK:
            return f"runs of {self.run} numbers in rows of {self.shape[1]}"
        return None

    def format(self) -> str | None:
        """Return the name of the block format that holds the matrix, or None."""
        return _NF4.name if self.obstacle() is None else None

    def blocks(self) -> FileWeight:
        """Return the matrix in its block format, which it must have."""
        assert self.format() is not None, "a block format holds the matrix"
        outputs, count = self.shape[0], self.shape[1] // BLOCK
        scales = np.repeat(self.scales(), self.run // BLOCK)[: outputs * count].reshape(outputs, count)
        return file_weight(_NF4, blocks_of(self.packed().reshape(outputs, count, -1), scales))

    def floats(self) -> F32:
        """Return the matrix, f32 [N, K]."""
        packed, scales, table = self.packed(), self.scales(), self.table()
        width = self.shape[1]

        def convert(rows: slice) -> F32:
            at = np.arange(rows.start * width, rows.stop * width)
            codes = packed[at // 2] >> np.where(at % 2, 0, 4).astype(np.uint8) & np.uint8(15)
            numbers: F32 = table[codes] * scales[at // self.run]
            return numbers.reshape(-1, width)

        return by_rows(self.shape, convert)
