"""Adapters of the reference kernels: docs/numerics.md, section Adapters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.adapters import AdapterSite, Change, LowRank
from ferrum.kernels.interface import AdapterRows
from ferrum.kernels.reference.fused_sums import add_products, fused
from ferrum.kernels.reference.reference_math import lanes_products

F32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


def changed(x: F32, y: F32, change: Change, scale: float) -> F32:
    """Change products y [R, N] of the inputs x [R, K].

    Args:
        scale: factor of the low-rank product, of the request.
    """
    if (new := change.replaced) is not None:
        columns = slice(None) if new.rows is None else new.rows
        y = y.copy()
        y[:, columns] = lanes_products(x, widened(new.values))
    if change.low_rank is not None:
        y = _added(y, lanes_products(x, widened(change.low_rank.a)), change.low_rank, scale)
    return _scaled(y, change)


def changed_embeddings(tokens: Int32, y: F32, change: Change, scale: float, request_scale: float) -> F32:
    """Change embeddings y [R, H] of tokens, which were multiplied by `scale`."""
    if (new := change.replaced) is not None:
        every = np.arange(len(tokens)) if new.rows is None else np.flatnonzero(np.isin(tokens, new.rows))
        at = tokens[every] if new.rows is None else np.searchsorted(new.rows, tokens[every])
        y = y.copy()
        y[every] = widened(new.values[at]) * np.float32(scale)
    if change.low_rank is not None:
        y = _added(y, widened(change.low_rank.a[tokens]), change.low_rank, request_scale * scale)
    return _scaled(y, change)


def of_group(change: Change, group: int) -> Change:
    """Return the change of one head or expert, whose matrices are those of all or its part of them."""
    low_rank = change.low_rank
    if low_rank is None:
        return change
    a, b = (each[group] if each.ndim > 2 else each for each in (low_rank.a, low_rank.b))
    return Change(LowRank(a, b, low_rank.scale))


def changed_heads(x: F32, y: F32, change: Change, scale: float, heads: int) -> F32:
    """Change products by heads y [R, heads x N] of the inputs x [R, heads x K]."""
    parts = zip(np.split(x, heads, axis=1), np.split(y, heads, axis=1), strict=True)
    return np.concatenate([changed(*part, of_group(change, head), scale) for head, part in enumerate(parts)], axis=1)


class ExpertChanges(NamedTuple):
    """Adapters of the experts of a layer.

    Attributes:
        adapters: of the rows of the step.
        site: of the layer.
    """

    adapters: tuple[AdapterRows, ...]
    site: AdapterSite

    def change(self, matrix: int, expert: int, rows: NDArray[np.int64], x: F32, y: F32) -> F32:
        """Change products y [n, N] of inputs x [n, K] by one of gate, up and down.

        Args:
            rows: of the step, [n], which these belong to.
        """
        y = y.copy()
        for each in self.adapters:
            change = self.site.entries.get(each.slot, (None,) * 3)[matrix]
            at = np.flatnonzero(np.isin(rows, each.rows))
            if change is not None and len(at):
                y[at] = changed(x[at], y[at], of_group(change, expert), each.scale)
        return y


def _added(y: F32, t: F32, low_rank: LowRank, scale: float) -> F32:
    """Return y + scale (t B^T + bias), where t [R, r] is A x."""
    product = add_products(np.zeros_like(y), t, np.ascontiguousarray(widened(low_rank.b).T))
    if low_rank.bias is not None:
        product = product + low_rank.bias
    return fused(product, np.float32(low_rank.scale * scale), y)


def _scaled(y: F32, change: Change) -> F32:
    """Return factor y + offset of each output."""
    return y if change.factor is None or change.offset is None else fused(y, change.factor, change.offset)


def widened(values: NDArray[Any]) -> F32:
    """Return numbers as f32, exactly."""
    return np.ascontiguousarray(values, np.float32)
