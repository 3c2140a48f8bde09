"""Computation of rope table rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from ferrum.kernels.operations import F32
from ferrum.kernels.reference.double_math import cosine_and_sine

_PIECE: Final = 1 << 14
"""Angles computed at a time, so that temporary arrays stay in the second-level cache."""


def rope_rows(frequencies: tuple[float, ...], scaling: float, begin: int, end: int) -> tuple[F32, F32]:
    """Compute cos and sin of position x frequency, times `scaling`, for positions `begin` to `end` - 1.

    Angles are f32 products, as in the training of the checkpoints. The bits of a row depend only on its position.

    Returns: [positions, pairs] each.
    """
    by_pair = np.asarray(frequencies, np.float32)
    cosines, sines = (np.empty((end - begin, len(by_pair)), np.float32) for _ in range(2))
    step = max(1, _PIECE // max(1, len(by_pair)))
    for first in range(begin, end, step):
        angles = np.arange(first, min(first + step, end)).astype(np.float32)[:, None] * by_pair
        rows = slice(first - begin, first - begin + len(angles))
        cosine, sine = cosine_and_sine(angles.astype(np.float64))
        cosines[rows], sines[rows] = cosine * scaling, sine * scaling
    return cosines, sines
