"""Recurrent operations of the reference kernels: how a row advances a state. docs/numerics.md, section States."""

from __future__ import annotations

import numpy as np

from ferrum.kernels.op_attributes import DeltaShape
from ferrum.kernels.operations import F32
from ferrum.kernels.reference.activations import sigmoid
from ferrum.kernels.reference.fused_sums import fused
from ferrum.kernels.reference.reference_experts import softplus
from ferrum.kernels.reference.reference_math import exp, squares_sum

CHAINS = 4
"""Accumulators of a sum over the key dimension. A GPU would wait for one chain at every term."""

L2_EPS = np.float32(1e-6)


def convolve(state: F32, row: F32, weight: F32) -> F32:
    """Push a row [C] to the rows of the state [(taps - 1) x C], in place, and return the convolution [C]."""
    window = np.concatenate([state, row]).reshape(-1, len(row))
    y = np.zeros_like(row)
    for x, w in zip(window, weight.reshape(window.shape), strict=True):
        y = fused(x, w, y)
    state[:] = window[1:].ravel()
    return y


def advance_delta(state: F32, row: F32, decay: F32, shift: F32, shape: DeltaShape) -> F32:
    """Advance the states [heads x key dim x value dim] by a row, in place, and return the result.

    Args:
        row: x, a and b of `Operations.delta_rule`, one after another.
    """
    heads, values = shape.num_heads, shape.output_columns
    keys = (shape.input_columns - values) // 2
    q, k, v, a, b = np.split(row, np.cumsum([keys, keys, values, heads]))
    head = np.arange(heads)
    head = head % shape.num_key_heads if shape.interleaved else head // (heads // shape.num_key_heads)
    q = (unit(q.reshape(-1, shape.key_dim)) * np.float32(shape.key_dim**-0.5))[head]
    k = unit(k.reshape(-1, shape.key_dim))[head]
    v = v.reshape(heads, shape.value_dim)
    s = state.reshape(heads, shape.key_dim, shape.value_dim)
    s *= exp(decay * softplus(a + shift))[:, None, None]
    change = (v - chained(s, k)) * sigmoid(b)[:, None]
    s[:] = fused(k[:, :, None], change[:, None, :], s)
    return chained(s, q).ravel()


def unit(x: F32) -> F32:
    """Return vectors [..., n] with length 1: x * (1 / sqrt(sum of squares + 1e-6))."""
    inverse: F32 = np.float32(1) / np.sqrt(squares_sum(x) + L2_EPS)
    return x * inverse[..., None]


def chained(s: F32, x: F32) -> F32:
    """Multiply s [heads, keys, values] by x [heads, keys] -> [heads, values].

    Term i is added by `fused` to accumulator i mod 4; these are added as (v0 + v1) + (v2 + v3).
    """
    chains = [np.zeros((s.shape[0], s.shape[2]), np.float32) for _ in range(CHAINS)]
    for i in range(s.shape[1]):
        chains[i % CHAINS] = fused(s[:, i], x[:, i, None], chains[i % CHAINS])
    return (chains[0] + chains[1]) + (chains[2] + chains[3])
