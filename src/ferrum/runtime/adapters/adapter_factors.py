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

_SUMS: Final = 64
"""Sums of the squares of a row or a column: square k is added to sum k mod 64."""

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


def with_column_factors(change: Change, table: BaseMatrix, pause: Callable[[], None]) -> Change:
    """Return a change of an embedding [V, H] with a factor in place of its magnitude f32 [H].

    Its numbers are factor (W + s A B^T), where the norms are of columns. Arguments as of `with_factors`.
    """
    if change.magnitude is None:
        return change
    factor = (change.magnitude / column_norms(table, change.low_rank, pause)).astype(np.float32)
    return replace(change, factor=factor, offset=np.zeros_like(factor), magnitude=None)


def column_norms(table: BaseMatrix, low_rank: LowRank | None, pause: Callable[[], None]) -> F64:
    """Return the norms of the columns of W + s A B^T [H], added in a fixed order.

    Args:
        pause: called between pieces of work.
    """
    tokens, width = table.shape
    rank = 0 if low_rank is None else low_rank.b.shape[1]
    a = np.zeros((tokens, 0)) if low_rank is None else low_rank.a
    b = np.zeros((width, 0)) if low_rank is None else widened(low_rank.b) * low_rank.scale
    total, step = np.zeros((_SUMS, width)), min(_SUMS, max(1, _PIECE // (width * (rank + 1))))
    for begin in range(0, tokens, step):
        rows = np.arange(begin, min(begin + step, tokens), dtype=np.int32)
        w = table.rows(rows).astype(np.float64)
        factors = widened(a[rows])
        for j in range(rank):
            w += factors[:, j : j + 1] * b[:, j]
        total[rows % _SUMS] += np.square(w)
        pause()
    return np.sqrt(_folded(total.T))


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
        squares = np.zeros((len(rows), -(-inputs // _SUMS) * _SUMS))
        np.square(w, out=squares[:, :inputs])
        norms[rows] = np.sqrt(_folded(squares.reshape(len(rows), -1, _SUMS).sum(axis=1)))
        pause()
    return norms


def _folded(total: F64) -> F64:
    """Add the upper half of each row's 64 sums to the lower one, six times."""
    while total.shape[1] > 1:
        total = total[:, : total.shape[1] // 2] + total[:, total.shape[1] // 2 :]
    return total[:, 0]


def widened(values: NDArray[Any]) -> F64:
    """Return numbers as f64, exactly."""
    return values.astype(np.float64)
