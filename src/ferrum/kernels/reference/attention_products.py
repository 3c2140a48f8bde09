"""The two products of attention in each KV format: one arithmetic per format, at every query length.

Floats: queries and probabilities are rounded to bfloat16 where keys and values are, and products take their terms in
ascending order.

int8: 1. A key or value is int8 codes with one scale in f32 per token and head: `round_whole` by 127.
      2. A query is rounded in the same way, one scale per row and head.
             score = float32(exact sum of query code x key code) * (key scale * query scale)
      3. Per step of 64 keys each probability is multiplied by its value's scale (0 stays 0, whatever the scale), and
         these are rounded to whole numbers up to 16383, one scale per row, head and step.
             out = out * decay + float32(exact sum of probability code x value code) * scale
         14 bits, because as two halves of 7 they multiply bytes exactly in the integer instructions of every tier.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np

from ferrum.kernels.interface import F32
from ferrum.kernels.reference.reference_math import ordered_sum, round_bf16, round_whole
from ferrum.kernels.reference.store import LEVELS, Stored

WEIGHT_LEVELS: Final = 16383
"""Whole numbers above 0 that stand for probabilities with int8 values."""


class Products(Protocol):
    """What attention multiplies in. Letters: T tokens of a step; `share` query heads of each KV head."""

    def queries(self, q: F32) -> Any:
        """[rows, kv, share, dim] -> the same, as this arithmetic wants them."""
        ...

    def scores(self, queries: Any, keys: Stored) -> F32:
        """Queries x keys -> [rows, kv, share, T]."""
        ...

    def mixed(self, weights: F32, values: Stored) -> F32:
        """Probabilities [rows, kv, share, T] x values -> [rows, kv, share, dim]."""
        ...


class FloatProducts:
    """Sums in ascending order; see `Products`.

    Args:
        low_precision: bfloat16 at the products' inputs, else f32.
    """

    def __init__(self, *, low_precision: bool) -> None:
        self._low_precision = low_precision

    def queries(self, q: F32) -> F32:
        """See `Products.queries`."""
        return round_bf16(q) if self._low_precision else q

    def scores(self, queries: F32, keys: Stored) -> F32:
        """See `Products.scores`."""
        columns = np.ascontiguousarray(keys.elements.transpose(2, 1, 0))  # [dim, kv, T]
        return _ascending(np.moveaxis(queries, 3, 0), columns)

    def mixed(self, weights: F32, values: Stored) -> F32:
        """See `Products.mixed`."""
        weights = round_bf16(weights) if self._low_precision else weights
        return _ascending(np.moveaxis(weights, 3, 0), values.elements)


class ByteProducts:
    """Exact integer sums; see `Products`."""

    def queries(self, q: F32) -> tuple[F32, F32]:
        """See `Products.queries`: codes, and scales [rows, kv, share]."""
        return round_whole(q, LEVELS)

    def scores(self, queries: tuple[F32, F32], keys: Stored) -> F32:
        """See `Products.scores`."""
        assert keys.scales is not None
        codes, scales = queries
        sums = _exact(codes, keys.elements.transpose(1, 2, 0))
        return sums * (keys.scales.T[None, :, None, :] * scales[..., None])

    def mixed(self, weights: F32, values: Stored) -> F32:
        """See `Products.mixed`."""
        assert values.scales is not None
        scaled = np.where(weights == 0, np.float32(0), weights * values.scales.T[None, :, None, :])
        codes, scales = round_whole(scaled, WEIGHT_LEVELS)
        return _exact(codes, values.elements.transpose(1, 0, 2)) * scales[..., None]


def _exact(left: F32, right: F32) -> F32:
    """Whole numbers [rows, kv, share, n] x [kv, n, width] -> [rows, kv, share, width], the exact sums rounded."""
    rows, heads, share, depth = left.shape
    stacked = left.transpose(1, 0, 2, 3).reshape(heads, rows * share, depth)
    sums = stacked.astype(np.float64) @ right.astype(np.float64)  # exact in whatever order BLAS adds
    return sums.astype(np.float32).reshape(heads, rows, share, -1).transpose(1, 0, 2, 3)


def _ascending(left: F32, right: F32) -> F32:
    """sum over n, ascending from 0: left [n, rows, kv, share] x right [n, kv, width] -> [rows, kv, share, width]."""
    out = np.empty((*left.shape[1:], right.shape[2]), np.float32)
    for row in range(left.shape[1]):
        terms = np.zeros((len(left) + 1, *out.shape[1:]), np.float32)
        np.multiply(left[:, row, :, :, None], right[:, :, None, :], out=terms[1:])
        out[row] = ordered_sum(terms)
    return out
