"""Vectors of parameters that no checkpoint holds."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
from numpy.typing import NDArray

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


def resized_grid(grid: F32, rows: int, columns: int) -> F32:
    """Return vectors at the places of a grid, resized to another one by a triangle filter, f32 [rows, columns, H].

    The filter is as wide as a source's or a result's place, whichever is larger: `interpolate` of torch with
    `mode="bilinear"` and `antialias=True`.

    Args:
        grid: f32 [rows, columns, H].
    """
    for axis, size in enumerate((rows, columns)):
        places, weights = _triangle(grid.shape[axis], size)
        shape = [1] * grid.ndim
        shape[axis] = size
        pairs = zip(places, weights, strict=True)
        grid = reduce(np.add, (weight.reshape(shape) * grid.take(place, axis) for place, weight in pairs))
    return grid


def _triangle(source: int, size: int) -> tuple[NDArray[np.int64], F32]:
    """Return which of the source's places each result has, and by which weight, both [taps, size]."""
    scale = source / size
    reach = max(1.0, scale)
    centres = (np.arange(size) + 0.5) * scale - 0.5
    places = np.floor(centres - reach).astype(np.int64) + np.arange(1, math.ceil(2 * reach) + 1)[:, None]
    weights = np.maximum(0, 1 - np.abs(places - centres) / reach)
    weights[(places < 0) | (places >= source)] = 0
    total = weights[0].copy()
    for each in weights[1:]:
        total += each
    return places.clip(0, source - 1), (weights / total).astype(np.float32)
