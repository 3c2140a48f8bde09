"""Rows of rope tables."""

from __future__ import annotations

import numpy as np

from ferrum.kernels.interface import F32


def rope_rows(frequencies: tuple[float, ...], scaling: float, begin: int, end: int) -> tuple[F32, F32]:
    """cos and sin of position x frequency, times `scaling`, for positions `begin` to `end` - 1: [positions, pairs].

    Angles are f32 products, as the checkpoints were trained with. A row's bits depend on its position alone.
    """
    angles = np.arange(begin, end, dtype=np.float32)[:, None] * np.asarray(frequencies, np.float32)[None, :]
    exact = angles.astype(np.float64)
    return (np.cos(exact) * scaling).astype(np.float32), (np.sin(exact) * scaling).astype(np.float32)
