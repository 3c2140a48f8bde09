"""Vectors of parameters that no checkpoint holds."""

from __future__ import annotations

import numpy as np

from ferrum.kernels.operations import F32
from ferrum.kernels.reference.double_math import logarithm


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
