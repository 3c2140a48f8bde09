"""The two matrix products of attention, by KV format. The arithmetic is the same for every query length.

Floats: with a bfloat16 KV cache, queries and probabilities are rounded to bfloat16, and terms are added in pairs
(`fused_sums.add_pairs`, whose rule for subnormal numbers also holds for out * decay);
otherwise in ascending order. The terms of a step are added to out * decay one by one.

int8: 1. A key or value is stored as int8 codes with one f32 scale per token and head: `round_whole` with 127 levels.
      2. A query is rounded in the same way, with one scale per row and head.
             score = float32(exact sum of query code x key code) * (key scale * query scale)
      3. Per step of 64 keys, each probability is multiplied by the scale of its value (0 stays 0 for any scale). The
         products are rounded to integers up to 16383, with one scale per row, head and step.
             out = fused(float32(exact sum of probability code x value code), scale, out * decay)
         14 bits split into two halves of 7, which every tier's integer instructions multiply exactly with bytes.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np

from ferrum.kernels.operations import F32
from ferrum.kernels.reference.fused_sums import add_pairs, add_products, flushed_product, fused
from ferrum.kernels.reference.reference_math import input_bf16, round_whole
from ferrum.kernels.reference.store import LEVELS, Stored

WEIGHT_LEVELS: Final = 16383
"""The largest integer code of a probability with int8 values."""


class Products(Protocol):
    """The products of one KV format. Letters: T tokens of a step, `share` query heads per KV head."""

    def queries(self, q: F32) -> Any:
        """Convert queries [rows, kv, share, dim] to the inputs of `scores`."""

    def scores(self, queries: Any, keys: Stored) -> F32:
        """Multiply queries by keys -> [rows, kv, share, T]."""

    def mix(self, out: F32, decay: F32, weights: F32, values: Stored) -> F32:
        """Add probabilities [rows, kv, share, T] times values to out * decay.

        Args:
            out: [rows, kv, share, dim].
            decay: factors of `out`, [rows, kv, share, 1].

        Returns: a new array [rows, kv, share, dim].
        """


class FloatProducts(Products):
    """Products of floats, each term added to an output in ascending order.

    Args:
        low_precision: round inputs to bfloat16 and add the terms in pairs.
    """

    def __init__(self, *, low_precision: bool) -> None:
        self._input = input_bf16 if low_precision else np.asarray
        self._add = add_pairs if low_precision else add_products
        self._decayed = flushed_product if low_precision else np.multiply

    def queries(self, q: F32) -> F32:
        return self._input(q)

    def scores(self, queries: F32, keys: Stored) -> F32:
        out = np.zeros((*queries.shape[:3], len(keys.elements)), np.float32)
        return self._per_head(out, queries, keys.elements.transpose(1, 2, 0))

    def mix(self, out: F32, decay: F32, weights: F32, values: Stored) -> F32:
        return self._per_head(self._decayed(out, decay), self._input(weights), values.elements.transpose(1, 0, 2))

    def _per_head(self, out: F32, left: F32, right: F32) -> F32:
        """Add left [rows, kv, share, n] x right [kv, n, width] to out [rows, kv, share, width]."""
        sums = np.empty_like(out)
        for head, columns in enumerate(right):
            width, depth = out.shape[3], left.shape[3]
            start, rows = out[:, head].reshape(-1, width), left[:, head].reshape(-1, depth)
            sums[:, head] = self._add(start, rows, columns).reshape(sums[:, head].shape)
        return sums


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

    def mix(self, out: F32, decay: F32, weights: F32, values: Stored) -> F32:
        assert values.scales is not None
        scaled = np.where(weights == 0, np.float32(0), weights * values.scales.T[None, :, None, :])
        codes, scales = round_whole(scaled, WEIGHT_LEVELS)
        return fused(_exact(codes, values.elements.transpose(1, 0, 2)), scales[..., None], out * decay)


def _exact(left: F32, right: F32) -> F32:
    """Multiply integers [rows, kv, share, n] x [kv, n, width] -> [rows, kv, share, width]; round the exact sums."""
    rows, heads, share, depth = left.shape
    stacked = left.transpose(1, 0, 2, 3).reshape(heads, rows * share, depth)
    sums = stacked.astype(np.float64) @ right.astype(np.float64)  # exact in any order of additions
    return sums.astype(np.float32).reshape(heads, rows, share, -1).transpose(1, 0, 2, 3)
