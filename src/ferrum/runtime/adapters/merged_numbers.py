"""The numbers of a matrix, a bias and a norm with adapters merged into them: W + s B A.

Models have the results of adapters that are served (`kernels/adapters.py`). Sums are float64 in a fixed order, and each
number is rounded once, so that every machine writes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.adapters import Change, LowRank, Replacement
from ferrum.kernels.operations import F32
from ferrum.models.tensor_names import EMBEDDING
from ferrum.quant.dense import DenseWeight
from ferrum.runtime.adapters.adapter_factors import F64, column_norms, row_norms, widened

_PIECE: Final = 1 << 16
"""Numbers that are computed at a time: they stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class ScaledChange:
    """A change of a matrix.

    Attributes:
        change: as files hold it, with magnitude and bias.
        scale: factor of its low-rank product, in addition to its own.
        path: of the adapter, for messages.
    """

    change: Change
    scale: float
    path: str

    @property
    def of_matrix(self) -> bool:
        """Whether it changes the matrix itself."""
        parts = self.change.low_rank, self.change.replaced, self.change.magnitude
        return any(part is not None for part in parts)

    @property
    def of_bias(self) -> bool:
        """Whether it changes the bias."""
        low_rank = self.change.low_rank
        return self.change.bias is not None or (low_rank is not None and low_rank.bias is not None)


def merged_pieces(name: str, base: NDArray[Any], changes: Sequence[ScaledChange]) -> Iterator[tuple[slice, F32]]:
    """Yield all rows of a changed matrix [N, K] in ascending order, a piece at a time.

    Args:
        name: of the matrix.
        base: its numbers without changes.
        changes: in the order in which they are added.
    """
    outputs, inputs = base.shape
    products = [
        _Product(name, each.change.low_rank, each.scale) for each in changes if each.change.low_rank is not None
    ]
    factors = [_factors(name, each.change, base) for each in changes if each.change.magnitude is not None]
    size = products[0].rows if products else outputs  # of an expert or a head
    step = max(1, _PIECE // inputs)
    for first in range(0, outputs, size):
        for product in products:
            product.begin(first // size)
        for begin in range(0, size, step):
            rows = slice(first + begin, first + min(begin + step, size))
            w = base[rows].astype(np.float64)
            for each in changes:
                _replace(w, rows, each.change.replaced)
            for product in products:
                product.add(w, begin)
            for factor in factors:
                w *= factor if name == EMBEDDING else factor[rows, None]
            with np.errstate(over="ignore"):  # quantisers refuse infinities
                merged = w.astype(np.float32)
            yield rows, merged


def merged_norm(base: NDArray[Any], changes: Sequence[ScaledChange], offset: float) -> F32:
    """Return the changed weight of a norm [N], without the `offset` that the network adds to it."""
    for each in changes:
        if each.change.replaced is not None:
            base = each.change.replaced.values[:, 0] - np.float32(offset)
    weight: F32 = base.astype(np.float32)
    return weight


def merged_bias(
    matrix: str, base: NDArray[Any], changes: Sequence[ScaledChange], read: Callable[[], NDArray[Any]]
) -> F32:
    """Return a changed bias [N].

    Args:
        matrix: whose bias it is.
        base: the bias without changes.
        changes: in the order in which they are added.
        read: returns the matrix without changes.
    """
    bias = widened(base)
    for each in changes:
        change, low_rank = each.change, each.change.low_rank
        if change.bias is not None:
            bias = widened(change.bias)
        if low_rank is None or low_rank.bias is None:
            continue
        added = widened(low_rank.bias) * (low_rank.scale * each.scale)
        bias = bias + (added if change.magnitude is None else added * _factors(matrix, change, read()))
    merged: F32 = bias.astype(np.float32)
    return merged


def _factors(name: str, change: Change, base: NDArray[Any]) -> F64:
    """Return what a change with a magnitude multiplies the rows of a matrix by [N], or the columns of an embedding."""
    assert change.magnitude is not None
    norms = column_norms if name == EMBEDDING else row_norms
    return change.magnitude / norms(DenseWeight(base), change.low_rank, lambda: None)


def _replace(w: F64, rows: slice, new: Replacement | None) -> None:
    """Replace those rows of a piece that a change replaces."""
    if new is not None and new.rows is None:
        w[:] = new.values[rows]
    elif new is not None and new.rows is not None:
        first, last = np.searchsorted(new.rows, (rows.start, rows.stop))
        w[new.rows[first:last] - rows.start] = new.values[first:last]


class _Product:
    """A low-rank product of a matrix, of which one expert's or head's part is widened at a time.

    Attributes:
        rows: of each part.
    """

    def __init__(self, name: str, low_rank: LowRank, scale: float) -> None:
        embeds = name == EMBEDDING
        self._b, self._a = (low_rank.a, low_rank.b.T) if embeds else (low_rank.b, low_rank.a)
        self._scale = low_rank.scale * scale
        self.rows = self._b.shape[-2]

    def begin(self, part: int) -> None:
        """Add to rows of this part from now on."""
        b, a = (each[part] if each.ndim > 2 else each for each in (self._b, self._a))
        self._part = widened(b), widened(a)

    def add(self, w: F64, begin: int) -> None:
        """Add to the rows of the part from `begin` on."""
        b, a = self._part
        b = b[begin : begin + len(w)] * self._scale
        product = np.empty_like(w)
        for j in range(len(a)):  # in this order on every machine
            np.multiply(b[:, j : j + 1], a[j], out=product)
            w += product
