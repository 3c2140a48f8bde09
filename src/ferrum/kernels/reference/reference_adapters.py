"""Adapters of the reference kernels: docs/numerics.md, section Adapters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.adapters import Change, LowRank
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
    if change.factor is not None and change.offset is not None:
        y = fused(y, change.factor, change.offset)
    return y


def changed_embeddings(tokens: Int32, y: F32, change: Change, scale: float, request_scale: float) -> F32:
    """Change embeddings y [R, H] of tokens, which were multiplied by `scale`."""
    if (new := change.replaced) is not None:
        every = np.arange(len(tokens)) if new.rows is None else np.flatnonzero(np.isin(tokens, new.rows))
        at = tokens[every] if new.rows is None else np.searchsorted(new.rows, tokens[every])
        y = y.copy()
        y[every] = widened(new.values[at]) * np.float32(scale)
    if change.low_rank is not None:
        y = _added(y, widened(change.low_rank.a[tokens]), change.low_rank, request_scale * scale)
    return y


def _added(y: F32, t: F32, low_rank: LowRank, scale: float) -> F32:
    """Return y + scale (t B^T + bias), where t [R, r] is A x."""
    product = add_products(np.zeros_like(y), t, np.ascontiguousarray(widened(low_rank.b).T))
    if low_rank.bias is not None:
        product = product + low_rank.bias
    return fused(product, np.float32(low_rank.scale * scale), y)


def widened(values: NDArray[Any]) -> F32:
    """Return numbers as f32, exactly."""
    return np.ascontiguousarray(values, np.float32)
