"""Vectors of parameters that no checkpoint holds."""

from __future__ import annotations

import numpy as np

from ferrum.kernels.operations import F32
from ferrum.kernels.reference.double_math import logarithm
from ferrum.kernels.reference.reference_rows import rope_rows


def ones(size: int) -> F32:
    """Return ones: the weight of a norm that has none."""
    return np.ones(size, np.float32)


def zeros(size: int) -> F32:
    """Return zeros that take no memory, for an inventory."""
    return np.broadcast_to(np.float32(0), size)


def temperatures(scale: float, period: int, shift: int, positions: int) -> F32:
    """Return 1 + scale log(1 + floor((p + shift) / period)) of the first positions p, f32 [positions].

    Llama 4 and Ministral 3 multiply queries by it.
    """
    levels = (np.arange(positions) + shift) // period
    count = int(levels[-1]) + 1 if positions else 0
    return np.asarray([1 + scale * logarithm(1.0 + level) for level in range(count)], np.float32)[levels]


def grid_rotations(rows: tuple[float, ...], columns: tuple[float, ...], side: int) -> tuple[F32, F32]:
    """Return cosines and sines of the places of a grid, f32 [side x side, pairs].

    The first pairs turn by the row of a place, the others by its column, by frequencies in radians.
    """
    by_row, by_column = (rope_rows(each, 1.0, 0, side) for each in (rows, columns))
    cosines, sines = (
        np.concatenate((np.repeat(row, side, axis=0), np.tile(column, (side, 1))), axis=1)
        for row, column in zip(by_row, by_column, strict=True)
    )
    return cosines, sines
