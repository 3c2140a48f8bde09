"""Computation of rope table rows."""

from __future__ import annotations

import numpy as np

from ferrum.kernels.interface import F32


def rope_rows(frequencies: tuple[float, ...], scaling: float, begin: int, end: int) -> tuple[F32, F32]:
    """Compute cos and sin of position x frequency, times `scaling`, for positions `begin` to `end` - 1.

    Angles are f32 products, as in the training of the checkpoints. The bits of a row depend only on its position.

    Returns: [positions, pairs] each.
    """
    angles = np.arange(begin, end, dtype=np.float32)[:, None] * np.asarray(frequencies, np.float32)[None, :]
    exact = angles.astype(np.float64)
    return (np.cos(exact) * scaling).astype(np.float32), (np.sin(exact) * scaling).astype(np.float32)
