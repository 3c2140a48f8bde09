"""Elementary f32 functions whose bits depend only on their arguments.

They use IEEE additions, multiplications, divisions and integer bit operations, element by element. So every array
shape, every machine and C++ compiled without contraction give the same bits. Sums have a documented order.
"""

from __future__ import annotations

import math
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

LEAST: Final = np.float32(2.0**-64)
"""If the largest magnitude of a group is below this, `round_whole` treats the group as zeros."""

_BLOCK: Final = 1 << 17
"""Terms of a product computed at a time."""

LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts (Cody and Waite): the first has 15 trailing zero bits, so that n * LN2_HIGH is exact for |n| < 2^15.
_LN2_HIGH = np.float32(0.693145751953125)
_LN2_LOW = np.float32(1.4286068203094172e-06)
# Taylor coefficients, highest power first; for |r| <= 0.35 the first omitted term is below 6e-9 of the result.
_EXP = tuple(np.float32(c) for c in (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0))
_EXP2 = tuple(np.float32(0.6931471805599453**k / f) for k, f in enumerate((1, 1, 2, 6, 24, 120, 720, 5040)))[::-1]


def _horner(r: F32, coefficients: tuple[np.float32, ...]) -> F32:
    total = np.full_like(r, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * r + coefficient
    return total


def _scaled(mantissa: F32, exponent: F32) -> F32:
    """Compute mantissa * 2^exponent by exponent bits: 0 for exponents below -126, infinity above 127."""
    finite = np.where(np.isnan(exponent), np.float32(0), exponent)  # the mantissa carries the NaN
    bits = (np.clip(finite, -126, 127).astype(np.int32) + 127) << 23
    scaled = mantissa * bits.view(np.float32)
    scaled = np.where(exponent < -126, np.float32(0), scaled)
    return np.where(exponent > 127, np.float32(np.inf), scaled).astype(np.float32)


def exp(x: F32) -> F32:
    """Compute e^x for f32 of any shape, within 2 units in the last place; NaN stays NaN."""
    bounded = np.clip(x, np.float32(-200), np.float32(200))
    n = np.rint(bounded * LOG2_E)
    r = (bounded - n * _LN2_HIGH) - n * _LN2_LOW
    return _scaled(_horner(r, _EXP), n)


def exp2(x: F32) -> F32:
    """Compute 2^x for f32 of any shape, within 2 units in the last place; NaN stays NaN."""
    bounded = np.clip(x, np.float32(-300), np.float32(300))
    n = np.rint(bounded)
    return _scaled(_horner(bounded - n, _EXP2), n)


def silu(x: F32) -> F32:
    """Compute x * sigmoid(x)."""
    y: F32 = x / (np.float32(1) + exp(-x))
    return y


def tree_sum(x: F32) -> F32:
    """Sum over the last axis as a binary tree: pad with zeros to a power of two, then add halves.

    [..., n] -> [...]. The order depends only on n; `numpy.sum` guarantees no order.
    """
    n = x.shape[-1]
    size = 1 << max(n - 1, 0).bit_length()
    if size != n:
        padded = np.zeros((*x.shape[:-1], size), np.float32)
        padded[..., :n] = x
        x = padded
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def round_bf16(x: F32) -> F32:
    """Round to the nearest bfloat16, ties to even, and back to f32."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def round_whole(x: F32, levels: int) -> tuple[F32, F32]:
    """Round to integers of magnitude <= `levels` (below 2^22), with one scale over the last axis.

        largest = max |x|;  scale = largest / levels;  code = rint(x * (levels / largest))

    Each is a single f32 operation; rint rounds ties to even. |x| <= largest, so clipping is not needed. The maximum is
    taken of the bit patterns without sign, so a NaN is the largest. If the largest is below 2^-64, codes and scale are
    0, so that all further numbers are normal. If it is not finite, codes are 0 and the scale is NaN, which makes every
    product NaN.

    Returns: codes [..., n] and scales [...], f32.
    """
    largest = np.abs(x).max(axis=-1)  # numpy's maximum propagates NaN
    finite = np.isfinite(largest)
    used = finite & (largest >= LEAST)
    factor = np.divide(np.float32(levels), largest, out=np.zeros_like(largest), where=used)
    with np.errstate(invalid="ignore"):  # 0 * infinity, in elements that are not used
        codes = np.rint(x * factor[..., None])
    codes[~used] = 0
    return codes, np.where(used, largest / np.float32(levels), np.where(finite, np.float32(0), np.float32(np.nan)))


def fused(a: F32, b: F32, c: F32) -> F32:
    """Compute a * b + c with one rounding to f32; the arrays broadcast.

    The product is exact in f64. The sum is rounded to odd, so that rounding it to f32 equals rounding the exact sum
    (Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums"). Knuth's TwoSum gives the rounding error.
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    with np.errstate(invalid="ignore"):  # the error of an infinity is NaN
        back = total - product
        lost = (product - (total - back)) + (c - back)
        odd = total.view(np.int64) | 1
        # Take the odd neighbour of an even sum in the direction of the error: | 1 is the one away from zero.
        odd -= np.where((lost > 0) == (total > 0), 0, 2)
        inexact = np.isfinite(lost) & (lost != 0) & (total.view(np.int64) & 1 == 0)
    with np.errstate(over="ignore"):
        return np.where(inexact, odd.view(np.float64), total).astype(np.float32)


def ordered_sum(terms: F32) -> F32:
    """Sum over the first axis in ascending order: ((t_0 + t_1) + t_2) + ..., each addition rounded to f32.

    [n, ...] -> [...], C-contiguous. numpy adds pairwise only along the fastest axis ("Notes" of `numpy.sum`), so the
    terms get a second axis of at least two elements.
    """
    flat = terms.reshape(len(terms), -1)
    if flat.shape[1] == 1:
        flat = np.repeat(flat, 2, axis=1)
    total: F32 = np.add.reduce(flat, axis=0)[: math.prod(terms.shape[1:])]
    return total.reshape(terms.shape[1:])


def product(x: F32, w: NDArray[Any]) -> F32:
    """Multiply x [M, K] by w [N, K] (any float type) transposed -> [M, N].

    Each element starts at 0 and adds its K terms in ascending order, with one multiplication and one addition per term,
    each rounded to f32. The order of BLAS and einsum depends on the shape, so neither is used.
    """
    rows, depth = x.shape
    total = np.zeros((rows, w.shape[0]), np.float32)
    step = min(64, max(1, _BLOCK // max(1, total.size)))
    terms = np.empty((step + 1, *total.shape), np.float32)
    for begin in range(0, depth, step):
        block = w[:, begin : begin + step].T.astype(np.float32, order="C")
        used = terms[: len(block) + 1]
        used[0] = total
        np.multiply(x.T[begin : begin + step, :, None], block[:, None, :], out=used[1:])
        total = ordered_sum(used)
    return total


def best_tokens(logits: F32) -> NDArray[np.int32]:
    """Return the most likely token of each row, the lowest id among equals; -1 for a row that is not finite."""
    finite = np.isfinite(logits).all(axis=1)
    return np.where(finite, logits.argmax(axis=1), -1).astype(np.int32)
