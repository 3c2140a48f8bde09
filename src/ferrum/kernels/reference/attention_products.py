"""The two matrix products of attention, by KV format. The arithmetic is the same for every query length.

Floats: with a bfloat16 KV cache, queries and probabilities are rounded to bfloat16. Products add their terms in
ascending order.

int8: 1. A key or value is stored as int8 codes with one f32 scale per token and head: `round_whole` with 127 levels.
      2. A query is rounded in the same way, with one scale per row and head.
             score = float32(exact sum of query code x key code) * (key scale * query scale)
      3. Per step of 64 keys, each probability is multiplied by the scale of its value (0 stays 0 for any scale). The
         products are rounded to integers up to 16383, with one scale per row, head and step.
             out = out * decay + float32(exact sum of probability code x value code) * scale
         14 bits split into two halves of 7, which every tier's integer instructions multiply exactly with bytes.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np

from ferrum.kernels.interface import F32
from ferrum.kernels.reference.reference_math import ordered_sum, round_bf16, round_whole
from ferrum.kernels.reference.store import LEVELS, Stored

WEIGHT_LEVELS: Final = 16383
"""The largest integer code of a probability with int8 values."""


class Products(Protocol):
    """The products of one KV format. Letters: T tokens of a step, `share` query heads per KV head."""

    def queries(self, q: F32) -> Any:
        """Convert queries [rows, kv, share, dim] to the inputs of `scores`."""

    def scores(self, queries: Any, keys: Stored) -> F32:
        """Multiply queries by keys -> [rows, kv, share, T]."""

    def mixed(self, weights: F32, values: Stored) -> F32:
        """Multiply probabilities [rows, kv, share, T] by values -> [rows, kv, share, dim]."""


class FloatProducts(Products):
    """Products of floats, summed in ascending order.

    Args:
        low_precision: round inputs to bfloat16.
    """

    def __init__(self, *, low_precision: bool) -> None:
        self._low_precision = low_precision

    def queries(self, q: F32) -> F32:
        return round_bf16(q) if self._low_precision else q

    def scores(self, queries: F32, keys: Stored) -> F32:
        columns = np.ascontiguousarray(keys.elements.transpose(2, 1, 0))  # [dim, kv, T]
        return _ascending(np.moveaxis(queries, 3, 0), columns)

    def mixed(self, weights: F32, values: Stored) -> F32:
        weights = round_bf16(weights) if self._low_precision else weights
        return _ascending(np.moveaxis(weights, 3, 0), values.elements)


class ByteProducts(Products):
    """Products of int8 codes with exact integer sums."""

    def queries(self, q: F32) -> tuple[F32, F32]:
        """Return codes, and scales [rows, kv, share]."""
        return round_whole(q, LEVELS)

    def scores(self, queries: tuple[F32, F32], keys: Stored) -> F32:
        assert keys.scales is not None
        codes, scales = queries
        sums = _exact(codes, keys.elements.transpose(1, 2, 0))
        return sums * (keys.scales.T[None, :, None, :] * scales[..., None])

    def mixed(self, weights: F32, values: Stored) -> F32:
        assert values.scales is not None
        scaled = np.where(weights == 0, np.float32(0), weights * values.scales.T[None, :, None, :])
        codes, scales = round_whole(scaled, WEIGHT_LEVELS)
        return _exact(codes, values.elements.transpose(1, 0, 2)) * scales[..., None]


def _exact(left: F32, right: F32) -> F32:
    """Multiply integers [rows, kv, share, n] x [kv, n, width] -> [rows, kv, share, width]; round the exact sums."""
    rows, heads, share, depth = left.shape
    stacked = left.transpose(1, 0, 2, 3).reshape(heads, rows * share, depth)
    sums = stacked.astype(np.float64) @ right.astype(np.float64)  # exact in any order of additions
    return sums.astype(np.float32).reshape(heads, rows, share, -1).transpose(1, 0, 2, 3)


def _ascending(left: F32, right: F32) -> F32:
    """Sum over n in ascending order: left [n, rows, kv, share] x right [n, kv, width] -> [rows, kv, share, width]."""
    out = np.empty((*left.shape[1:], right.shape[2]), np.float32)
    for row in range(left.shape[1]):
        terms = np.zeros((len(left) + 1, *out.shape[1:]), np.float32)
        np.multiply(left[:, row, :, :, None], right[:, :, None, :], out=terms[1:])
        out[row] = ordered_sum(terms)
    return out
