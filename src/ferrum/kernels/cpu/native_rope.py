"""Rope tables that are filled as far as steps have come.

Of a long context's table most is never read, and filling all of it would take a fifth of a cold start.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ferrum.kernels.interface import F32
from ferrum.kernels.reference.reference_rope import rope_rows

CHUNK: Final = 1024
"""Positions that are filled at once: a step waits a millisecond or two for them."""


class GrowingRope:
    """A rope table whose memory stays where it is. Rows are the reference's, whenever they are filled.

    Args:
        frequencies, scaling, length: see `Kernels.rope_table`.

    Attributes:
        cosines, sines: [length, pairs]; read no row beyond what was reached.
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
