"""Attention of the reference kernels: online softmax over stored keys in steps of 64 tokens, ascending.

A row's result is a function of its query and of the keys and values it sees: how its neighbours were cut into spans,
where its pages lie and how many rows run beside it change no bit (Milakov and Gimelshein 2018 for the running maximum).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import F32, AttentionShape, Int32
from ferrum.kernels.reference.math import LOG2_E, exp2, ordered_sum, round_bf16, tree_sum

STEP = 64
"""Keys per step: fixed, whatever the page size."""

_MASKED = np.float32(-1e30)


def attend(
    q: F32, keys: F32, values: F32, positions: Int32, first: int, shape: AttentionShape, *, low_precision: bool
) -> F32:
    """One sequence's rows over its keys and values.

    Args:
        q: [rows, heads, dim].
        keys, values: [tokens, kv_heads, dim], read back from the store, for the positions from `first` to the last
            query's. `first` is a multiple of `STEP`.
        positions: [rows] of the queries.
        first: position of keys[0].
        shape: the layer's.
        low_precision: bfloat16 arithmetic at the products' inputs (queries and probabilities), else f32.

    Returns: [rows, heads, dim] f32.
    """
    rows, heads, dim = q.shape
    share = heads // shape.num_kv_heads
    scale = np.float32(shape.scale) * LOG2_E
    queries = round_bf16(q) if low_precision else q
    queries = queries.reshape(rows, shape.num_kv_heads, share, dim)
    maximum = np.full((rows, shape.num_kv_heads, share), _MASKED, np.float32)
    total = np.zeros_like(maximum)
    out = np.zeros((rows, shape.num_kv_heads, share, values.shape[2]), np.float32)
    for begin in range(0, len(keys), STEP):
        index = first + np.arange(begin, begin + STEP)
        visible = _visible(index, positions, shape.window)
        active = np.any(visible, axis=1)[:, None, None]
        step_keys, step_values = _padded(keys, begin), _padded(values, begin)
        scores = np.where(visible[:, None, None, :], _scores(queries, step_keys) * scale, _MASKED)
        raised = np.maximum(maximum, scores.max(axis=3))
        weights = np.where(visible[:, None, None, :], exp2(scores - raised[..., None]), np.float32(0))
        decay = exp2(maximum - raised)
        total = np.where(active, total * decay + tree_sum(weights), total)
        weights = round_bf16(weights) if low_precision else weights
        mixed = out * decay[..., None] + _mix(weights, step_values)
        out = np.where(active[..., None], mixed, out)
        maximum = raised
    # Adding 0 gives every zero one sign: that of an underflow depends on masked terms.
    return (out / total[..., None] + np.float32(0)).astype(np.float32, copy=False).reshape(rows, heads, -1)


def probabilities(q: F32, keys: F32, positions: Int32, first: int, shape: AttentionShape) -> F32:
    """Softmax weights for inspection: [heads, rows, tokens] f32, in plain two-pass arithmetic."""
    rows, heads, dim = q.shape
    grouped = q.reshape(rows, shape.num_kv_heads, heads // shape.num_kv_heads, dim)
    visible = _visible(first + np.arange(len(keys)), positions, shape.window)[:, None, None, :]
    scores = np.where(visible, _scores(grouped, keys) * np.float32(shape.scale) * LOG2_E, _MASKED)
    weights = np.where(visible, exp2(scores - scores.max(axis=3, keepdims=True)), np.float32(0))
    weights = weights / tree_sum(weights)[..., None]
    return np.ascontiguousarray(weights.reshape(rows, heads, -1).swapaxes(0, 1))


def _visible(index: NDArray[np.int64], positions: Int32, window: int | None) -> NDArray[np.bool_]:
    """[rows, keys] bool: causal, and inside the window."""
    seen: NDArray[np.bool_] = index[None, :] <= positions[:, None]
    if window is not None:
        seen &= index[None, :] > positions[:, None] - window
    return seen


def _padded(stored: F32, begin: int) -> F32:
    """One step's [STEP, kv_heads, dim], with zeros beyond what is stored."""
    piece = stored[begin : begin + STEP]
    if len(piece) == STEP:
        return piece
    full = np.zeros((STEP, *stored.shape[1:]), np.float32)
    full[: len(piece)] = piece
    return full


def _scores(queries: F32, keys: F32) -> F32:
    """[rows, kv, share, dim] x [tokens, kv, dim] -> [rows, kv, share, tokens], ascending over dim."""
    columns = np.ascontiguousarray(keys.transpose(2, 1, 0))  # [dim, kv, tokens]
    return _products(np.moveaxis(queries, 3, 0), columns)


def _mix(weights: F32, values: F32) -> F32:
    """[rows, kv, share, tokens] x [tokens, kv, dim] -> [rows, kv, share, dim], ascending over tokens."""
    return _products(np.moveaxis(weights, 3, 0), values)


def _products(left: F32, right: F32) -> F32:
    """sum over n, ascending from 0: left [n, rows, kv, share] x right [n, kv, width] -> [rows, kv, share, width]."""
    out = np.empty((*left.shape[1:], right.shape[2]), np.float32)
    for row in range(left.shape[1]):
        terms = np.zeros((len(left) + 1, *out.shape[1:]), np.float32)
        np.multiply(left[:, row, :, :, None], right[:, :, None, :], out=terms[1:])
        out[row] = ordered_sum(terms)
    return out
