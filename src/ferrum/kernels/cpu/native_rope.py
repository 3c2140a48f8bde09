"""Rope tables filled up to the largest position that a step has used.

Most of a long context's table is never read. Filling all of it takes a fifth of a cold start.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ferrum.kernels.interface import F32
from ferrum.kernels.reference.reference_rope import rope_rows

CHUNK: Final = 1024
"""Positions filled at once. One chunk delays a step by one or two milliseconds."""


class GrowingRope:
    """A rope table with a fixed address, filled in chunks with the rows of the reference.

    Args:
        frequencies, scaling, length: see `Kernels.rope_table`.

    Attributes:
        cosines, sines: [length, pairs]; rows after the last reached position are undefined.
    """

    def __init__(self, frequencies: tuple[float, ...], scaling: float, length: int) -> None:
        self.cosines: F32 = np.empty((length, len(frequencies)), np.float32)
        self.sines: F32 = np.empty_like(self.cosines)
        self._frequencies, self._scaling = frequencies, scaling
        self._filled = 0

    def reach(self, position: int) -> None:
        """Fill the table up to a position."""
        if position < self._filled:
            return
        rows = slice(self._filled, min(len(self.cosines), (position // CHUNK + 1) * CHUNK))
        self.cosines[rows], self.sines[rows] = rope_rows(self._frequencies, self._scaling, rows.start, rows.stop)
        self._filled = rows.stop
