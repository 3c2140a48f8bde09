"""Attention of the reference kernels: online softmax over stored keys, in ascending steps of 64 tokens.

A row's result depends only on its query and on the keys and values that it sees. Span boundaries, page numbers and
other rows change no bit. Source of the running maximum: Milakov and Gimelshein 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.op_attributes import AttentionShape
from ferrum.kernels.operations import F32, Int32
from ferrum.kernels.reference.activations import capped
from ferrum.kernels.reference.attention_products import ByteProducts, FloatProducts, Products
from ferrum.kernels.reference.fused_sums import fused
from ferrum.kernels.reference.reference_math import LOG2_E, exp2, lanes_sum
from ferrum.kernels.reference.store import Stored

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
    positions: Int32,
    first: int,
    shape: AttentionShape,
    products: Products,
    sinks: F32 | None = None,
) -> F32:
    """Compute attention of one sequence.

    Args:
        q: queries [rows, heads, dim].
        keys, values: stored tokens for positions from `first` to the last query's.
        positions: of the queries [rows].
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
        visible = _visible(index, positions, shape)
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
    q: F32, keys: F32, positions: Int32, first: int, shape: AttentionShape, sinks: F32 | None = None
) -> F32:
    """Compute softmax weights for inspection: [heads, rows, tokens] f32, in two-pass f32 arithmetic."""
    rows, heads, dim = q.shape
    grouped = q.reshape(rows, shape.num_kv_heads, heads // shape.num_kv_heads, dim)
    visible = _visible(first + np.arange(len(keys)), positions, shape)[:, None, None, :]
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


def _visible(index: NDArray[np.int64], positions: Int32, shape: AttentionShape) -> NDArray[np.bool_]:
    """Return a mask [rows, keys]: causal, and inside the window or the chunk."""
    seen: NDArray[np.bool_] = index[None, :] <= positions[:, None]
    seen &= index[None, :] >= first_seen(positions, shape)[:, None]
    return seen
