"""Factors and offsets of outputs, from the magnitudes (DoRA) and biases that files of adapters hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.adapters import BaseMatrix, Change, LowRank
from ferrum.kernels.operations import F32

F64 = NDArray[np.float64]

_PIECE: Final = 1 << 19
"""Products of two numbers that are computed without a pause: about a millisecond."""


def with_factors(change: Change, matrix: BaseMatrix, bias: F32 | None, pause: Callable[[], None]) -> Change:
    """Return a change with a factor and an offset in place of its magnitude and its bias.

    Outputs are factor (W x + s B A x) + bias, with the bias outside of the factor (Liu et al. 2024, section 4), and
    those of the kernels hold the old bias.

    Args:
        matrix, bias: of the base.
        pause: called between pieces of work.
    """
    if change.magnitude is None and change.bias is None:
        return change
    factor = np.ones(matrix.shape[0], np.float32)
    if change.magnitude is not None:
        factor = (change.magnitude / row_norms(matrix, change.low_rank, pause)).astype(np.float32)
    old = np.zeros_like(factor) if bias is None else bias
    offset = (old if change.bias is None else change.bias) - factor.astype(np.float64) * old
    return replace(change, factor=factor, offset=offset.astype(np.float32), magnitude=None, bias=None)


def row_norms(matrix: BaseMatrix, low_rank: LowRank | None, pause: Callable[[], None]) -> F64:
    """Return the norms of the rows of W + s B A [N], added in a fixed order.

    Args:
        pause: called between pieces of work.
    """
    outputs, inputs = matrix.shape
    rank = 0 if low_rank is None else len(low_rank.a)
    a = np.zeros((0, inputs)) if low_rank is None else widened(low_rank.a)
    b = np.zeros((outputs, 0)) if low_rank is None else widened(low_rank.b) * low_rank.scale
    norms, step = np.empty(outputs), max(1, _PIECE // (inputs * (rank + 1)))
    product = np.empty((min(step, outputs), inputs))  # in new arrays it takes a third longer
    for begin in range(0, outputs, step):
        rows = np.arange(begin, min(begin + step, outputs), dtype=np.int32)
        w = matrix.rows(rows).astype(np.float64)
        for j in range(rank):
            w += np.multiply(b[rows, j : j + 1], a[j], out=product[: len(rows)])
        squares = np.zeros((len(rows), -(-inputs // 64) * 64))
        np.square(w, out=squares[:, :inputs])
        norms[rows] = np.sqrt(_sum_64(squares))
        pause()
    return norms


def _sum_64(x: F64) -> F64:
    """Add the numbers of each row in 64 accumulators, then the upper half of these to the lower one, six times."""
    total: F64 = x.reshape(len(x), -1, 64).sum(axis=1)
    while total.shape[1] > 1:
        total = total[:, : total.shape[1] // 2] + total[:, total.shape[1] // 2 :]
    return total[:, 0]


def widened(values: NDArray[Any]) -> F64:
    """Return numbers as f64, exactly."""
    return values.astype(np.float64)
