"""Norms of the reference kernels, with those that adapters replace: docs/numerics.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.adapters import AdapterSite, Change
from ferrum.kernels.interface import AdapterRows
from ferrum.kernels.reference.reference_math import lanes_sum, squares_sum

F32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


def normed(x: F32, weight: F32, eps: float, bias: F32 | None = None, centred: bool = False) -> F32:
    """Norm the last axis of x; see `Operations.norm`. The weight may be one of each row."""
    count = np.float32(x.shape[-1])
    if centred:
        x = x - (lanes_sum(x) / count)[..., None]
    mean = squares_sum(x) / count
    inverse: F32 = np.float32(1) / np.sqrt(mean + np.float32(eps))
    y = x * inverse[..., None] * weight
    return y if bias is None else y + bias


class NormChanges(NamedTuple):
    """Adapters of norms of a step.

    Attributes:
        adapters: of the rows of the step.
        site: of the norms.
    """

    adapters: Sequence[AdapterRows]
    site: AdapterSite

    def of(self, index: int) -> Iterator[tuple[Int32, Change]]:
        """Yield rows and their changes of a norm of the site."""
        for each in self.adapters:
            entry = self.site.entries.get(each.slot)
            if entry is not None and entry[index] is not None:
                yield each.rows, entry[index]

    def change(self, x: F32, y: F32, weight: F32, eps: float, bias: F32 | None, centred: bool) -> F32:
        """Return norms y of x [R, H] with those of adapters."""
        for rows, change in self.of(0):
            own = weight if change.replaced is None else change.replaced.values[:, 0]
            y[rows] = normed(x[rows], own, eps, bias if change.bias is None else change.bias, centred)
        return y

    def weights(self, weight: F32, index: int, count: int) -> F32:
        """Return the weights of the heads of each row [count, 1, dim]."""
        found = np.repeat(weight[None, None], count, axis=0)
        for rows, change in self.of(index):
            if change.replaced is not None:
                found[rows] = change.replaced.values[:, 0]
        return found
