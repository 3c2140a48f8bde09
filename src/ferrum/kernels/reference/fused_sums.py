"""Fused sums: a * b + c with one rounding, and products of matrices that add every term so.

numpy has no such operation. The native library computes it if it is there; otherwise float64 emulates it. Both give the
same bits. This module shares no code with the kernels that the reference judges.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import Unsupported
from ferrum.kernels.cpu.library import load

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_LEAST: Final = np.float32(2.0**-126)
"""The smallest normal number."""

_TINY: Final = 2.0**-126 - 2.0**-151
"""With an unbounded exponent, a smaller magnitude rounds to a number below `_LEAST`."""

_PLAIN: Final = np.float32(2.0**50)
"""If all factors of bfloat16 are within this and its inverse, no product or sum can overflow or be subnormal."""

_BLOCK: Final = 64
"""Terms of a plain sum computed at a time."""


@cache
def library() -> Any | None:
    """Return the native library, or None if this installation has none."""
    try:
        return load()
    except Unsupported:
        return None


def fused(a: F32, b: F32 | np.float32, c: F32 | np.float32) -> F32:
    """Compute a * b + c with one rounding to f32; the arrays broadcast. Any NaN equals any other."""
    compiled = library()
    if compiled is None:
        return fused_in_float64(a, b, c)
    arrays = np.broadcast_arrays(a, b, c)
    out = np.empty(arrays[0].shape, np.float32)
    compiled.fuse(*(np.ascontiguousarray(each, np.float32) for each in arrays), out)
    return out


def fused_in_float64(a: F32, b: F32 | np.float32, c: F32 | np.float32) -> F32:
    """Compute `fused` with float64 operations."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _odd_sum(a, b, c).astype(np.float32)


def _odd_sum(a: F32, b: F32 | np.float32, c: F32 | np.float32) -> F64:
    """Compute a * b + c in f64, rounded to odd, so that one more rounding to f32 equals rounding the exact sum.

    The product is exact in f64. Source: Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums".
    Knuth's TwoSum gives the rounding error.
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = np.asarray(product + c)
    back = total - product
    lost = (product - (total - back)) + (c - back)  # NaN for an infinity
    odd = total.view(np.int64) | 1
    # Take the odd neighbour of an even sum in the direction of the error: | 1 is the one away from zero.
    odd -= np.where((lost > 0) == (total > 0), 0, 2)
    inexact = np.isfinite(lost) & (lost != 0) & (total.view(np.int64) & 1 == 0)
    return np.where(inexact, odd.view(np.float64), total)


def flushed(x: F32) -> F32:
    """Replace subnormal numbers by zeros of their sign."""
    return np.where(np.abs(x) < _LEAST, np.copysign(np.float32(0), x), x)


def flushed_product(a: F32, b: F32) -> F32:
    """Compute a * b by the rule of `add_pairs` for subnormal numbers; the arrays broadcast."""
    exact = np.multiply(flushed(a), flushed(b), dtype=np.float64)
    with np.errstate(over="ignore"):
        return _flushed_sum(exact)


def flushed_fused(a: F32, b: F32, c: F32) -> F32:
    """Compute a * b + c by the rule of `add_pairs` for subnormal numbers; the arrays broadcast."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _flushed_sum(_odd_sum(flushed(a), flushed(b), flushed(c)))


def _flushed_sum(exact: F64) -> F32:
    """Round a number that is exact or rounded to odd to f32, or to 0 if it would be subnormal."""
    return np.where(np.abs(exact) < _TINY, np.copysign(0, exact), exact).astype(np.float32)


def add_products(total: F32, x: F32, w: F32) -> F32:
    """Add the terms of x [M, K] x w [K, N] to total [M, N] in ascending k, each by `fused`. Returns a new array."""
    compiled = library()
    if compiled is None:
        return add_products_in_float64(total, x, w)
    return _add(compiled, total, x, w, pairs=False)


def add_pairs(total: F32, x: F32, w: F32) -> F32:
    """Add the terms of a product of bfloat16 numbers in ascending pairs (k, k + 1), the term k + 1 first.

    Each term is added by `fused`. Subnormal factors, totals and sums count as zeros of their sign. A sum is subnormal
    if it is below 2^-126 after rounding to 24 bits with an unbounded exponent. Zeros complete the last pair.

    Args:
        total: [M, N].
        x, w: [M, K] and [K, N], numbers that bfloat16 holds.

    Returns: a new array [M, N].
    """
    if x.shape[1] % 2:
        x, w = np.pad(x, ((0, 0), (0, 1))), np.pad(w, ((0, 1), (0, 0)))
    compiled = library()
    if compiled is None:
        return add_pairs_in_float64(total, x, w)
    return _add(compiled, total, x, w, pairs=True)


def _add(compiled: Any, total: F32, x: F32, w: F32, *, pairs: bool) -> F32:
    out = np.array(total, np.float32, order="C")
    compiled.add_products(np.ascontiguousarray(x), np.ascontiguousarray(w), out, pairs)
    return out


def add_products_in_float64(total: F32, x: F32, w: F32) -> F32:
    """Compute `add_products` with float64 operations."""
    for k in range(x.shape[1]):
        total = fused_in_float64(x[:, k, None], w[k], total)
    return total


def add_pairs_in_float64(total: F32, x: F32, w: F32) -> F32:
    """Compute `add_pairs` of an even number of terms with float64 operations, or with float32 where they are exact."""
    x, w, total = flushed(x), flushed(w), flushed(total)
    order = np.arange(x.shape[1]) ^ 1
    if all(_is_plain(each) for each in (x, w, total)):
        return _add_exact(total, x[:, order], w[order])
    for k in order:
        with np.errstate(over="ignore", invalid="ignore"):
            total = _flushed_sum(_odd_sum(x[:, k, None], w[k], total))
    return total


def _is_plain(x: F32) -> bool:
    """Report whether every number is 0 or of a magnitude in the range of `_PLAIN`."""
    size = np.abs(x)
    return bool(np.all((size == 0) | ((size <= _PLAIN) & (size >= 1 / _PLAIN))))


def _add_exact(total: F32, x: F32, w: F32) -> F32:
    """Add terms in ascending k. Products of bfloat16 are exact in f32, so that each term is rounded once."""
    for begin in range(0, x.shape[1], _BLOCK):
        part = slice(begin, begin + _BLOCK)
        terms = x.T[part, :, None] * w[part, None, :]
        total = ordered_sum(np.concatenate((total[None], terms)))
    return total


def ordered_sum(terms: F32) -> F32:
    """Sum over the first axis in ascending order: ((t_0 + t_1) + t_2) + ..., each addition rounded to f32.

    [n, ...] -> [...]. numpy adds pairwise only along the fastest axis ("Notes" of `numpy.sum`), so the terms are made
    contiguous and get a second axis of at least two elements.
    """
    flat = np.ascontiguousarray(terms).reshape(len(terms), -1)
    if flat.shape[1] == 1:
        flat = np.repeat(flat, 2, axis=1)
    total: F32 = np.add.reduce(flat, axis=0)[: math.prod(terms.shape[1:])]
    return total.reshape(terms.shape[1:])
