"""Attention of the reference kernels: online softmax over stored keys, in ascending steps of 64 tokens.

A row's result depends only on its query and on the keys and values that it sees. Span boundaries, page numbers and
other rows change no bit. Source of the running maximum: Milakov and Gimelshein 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.op_attributes import AttentionShape, EncoderShape
from ferrum.kernels.operations import F32, Int32
from ferrum.kernels.reference.fused_sums import add_pairs, add_products, flushed_product, fused
from ferrum.kernels.reference.reference_math import LOG2_E, exp2, input_bf16, lanes_sum, round_whole
from ferrum.kernels.reference.reference_rows import capped
from ferrum.kernels.reference.store import ELEMENT, LEVELS, Stored

# ---- The two matrix products of attention, by KV format. The arithmetic is the same for every query length ----
#
# Floats: with a bfloat16 KV cache, queries and probabilities are rounded to bfloat16, and terms are added in pairs
# (`fused_sums.add_pairs`, whose rule for subnormal numbers also holds for out * decay);
# otherwise in ascending order. The terms of a step are added to out * decay one by one.
#
# int8: 1. A key or value is stored as int8 codes with one f32 scale per token and head: `round_whole` with 127 levels.
#       2. A query is rounded in the same way, with one scale per row and head.
#              score = float32(exact sum of query code x key code) * (key scale * query scale)
#       3. Per step of 64 keys, each probability is multiplied by the scale of its value (0 stays 0 for any scale). The
#          products are rounded to integers up to 16383, with one scale per row, head and step.
#              out = fused(float32(exact sum of probability code x value code), scale, out * decay)
#          14 bits split into two halves of 7, which every tier's integer instructions multiply exactly with bytes.

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


class Sights(NamedTuple):
    """What queries see: keys from `first_seen` of their positions on, up to their last ones. [rows] each."""

    positions: Int32
    last: Int32


STEP = 64
"""Keys per step, independent of the page size."""

_MASKED = np.float32(-1e30)

PRODUCTS: Final[Mapping[str, Products]] = {
    "float32": FloatProducts(low_precision=False),
    "bfloat16": FloatProducts(low_precision=True),
    "int8": ByteProducts(),
}
"""Products by the format of keys and values."""


def attend(
    q: F32,
    keys: Stored,
    values: Stored,
    sights: Sights,
    first: int,
    shape: AttentionShape,
    products: Products,
    sinks: F32 | None = None,
) -> F32:
    """Compute attention of one sequence.

    Args:
        q: queries [rows, heads, dim].
        keys, values: stored tokens for positions from `first` to the last one that a query sees.
        sights: of the queries.
        first: position of the first key, a multiple of `STEP`.
        shape: of the layer.
        products: of the format of keys and values.
        sinks: [heads], a logit of each head in the softmax, or None.

    Returns: [rows, heads, dim] f32.
    """
    rows, heads, dim = q.shape
    share = heads // shape.num_kv_heads
    queries = products.queries(q.reshape(rows, shape.num_kv_heads, share, dim))
    maximum, total = _start(rows, shape, sinks)
    out = np.zeros((rows, shape.num_kv_heads, share, values.elements.shape[2]), np.float32)
    for begin in range(0, len(keys.elements), STEP):
        index = first + np.arange(begin, begin + STEP)
        visible = _visible(index, sights, shape)
        active = np.any(visible, axis=1)[:, None, None]
        scores = _scaled(products.scores(queries, keys.step(begin, STEP)), shape)
        scores = np.where(visible[:, None, None, :], scores, _MASKED)
        raised = np.maximum(maximum, scores.max(axis=3))
        weights = np.where(visible[:, None, None, :], exp2(scores - raised[..., None]), np.float32(0))
        decay = exp2(maximum - raised)
        total = np.where(active, fused(total, decay, lanes_sum(weights)), total)
        mixed = products.mix(out, decay[..., None], weights, values.step(begin, STEP))
        out = np.where(active[..., None], mixed, out)
        maximum = raised
    # Adding 0 makes every zero positive: the sign of an underflow depends on masked terms.
    return (out / total[..., None] + np.float32(0)).astype(np.float32, copy=False).reshape(rows, heads, -1)


def attend_all(q: F32, k: F32, v: F32, shape: EncoderShape) -> F32:
    """Compute attention among all rows [rows, heads x dim] of a span; every row sees what the last one sees."""
    by_head = len(q), shape.num_heads, shape.head_dim
    keys, values = (Stored(x.reshape(by_head).astype(ELEMENT[shape.format]).astype(np.float32), None) for x in (k, v))
    last = np.full(len(q), len(q) - 1, np.int32)
    all_heads = AttentionShape(0, 0, shape.num_heads, *by_head[1:], shape.scale)
    sights = Sights(last, last)
    return attend(q.reshape(by_head), keys, values, sights, 0, all_heads, PRODUCTS[shape.format]).reshape(q.shape)


def _start(rows: int, shape: AttentionShape, sinks: F32 | None) -> tuple[F32, F32]:
    """Return the greatest score and the sum of weights before the first key, [rows, kv_heads, share] each."""
    by_head = rows, shape.num_kv_heads, shape.num_heads // shape.num_kv_heads
    if sinks is None:
        return np.full(by_head, _MASKED, np.float32), np.zeros(by_head, np.float32)
    logits = (sinks * LOG2_E).reshape(1, *by_head[1:])
    return np.broadcast_to(logits, by_head).copy(), np.ones(by_head, np.float32)


def _scaled(scores: F32, shape: AttentionShape) -> F32:
    """Return scores as exponents of 2."""
    if shape.softcap is None:
        return scores * (np.float32(shape.scale) * LOG2_E)
    return capped(scores, shape.scale, shape.softcap, float(LOG2_E))


def probabilities(
    q: F32, keys: F32, sights: Sights, first: int, shape: AttentionShape, sinks: F32 | None = None
) -> F32:
    """Compute softmax weights for inspection: [heads, rows, tokens] f32, in two-pass f32 arithmetic."""
    rows, heads, dim = q.shape
    grouped = q.reshape(rows, shape.num_kv_heads, heads // shape.num_kv_heads, dim)
    visible = _visible(first + np.arange(len(keys)), sights, shape)[:, None, None, :]
    scores = _scaled(PRODUCTS["float32"].scores(grouped, Stored(keys, None)), shape)
    scores = np.where(visible, scores, _MASKED)
    maximum, total = _start(rows, shape, sinks)
    raised = np.maximum(maximum, scores.max(axis=3))
    weights = np.where(visible, exp2(scores - raised[..., None]), np.float32(0))
    weights = weights / (lanes_sum(weights) + total * exp2(maximum - raised))[..., None]
    return np.ascontiguousarray(weights.reshape(rows, heads, -1).swapaxes(0, 1))


def first_seen(position: Any, shape: AttentionShape) -> Any:
    """Return the first position that a query at this position sees, or that each of several sees."""
    first = position * 0
    if shape.window is not None:
        first = np.maximum(first, position - shape.window + 1)
    return first if shape.chunk is None else np.maximum(first, position // shape.chunk * shape.chunk)


def _visible(index: NDArray[np.int64], sights: Sights, shape: AttentionShape) -> NDArray[np.bool_]:
    """Return a mask [rows, keys]: not after the last key that a row sees, and inside the window or the chunk."""
    seen: NDArray[np.bool_] = index[None, :] <= sights.last[:, None]
    seen &= index[None, :] >= first_seen(sights.positions, shape)[:, None]
    return seen
