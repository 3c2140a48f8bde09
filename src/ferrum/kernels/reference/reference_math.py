"""Elementary f32 functions whose bits depend only on their arguments.

They use IEEE additions, multiplications, divisions, fused sums (`fused_sums`) and integer bit operations, element by
element. So every array shape, every machine and C++ compiled without contraction give the same bits. Sums have a
documented order.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.reference.fused_sums import add_pairs, add_products, flushed, fused

F32 = NDArray[np.float32]

LEAST: Final = np.float32(2.0**-64)
"""If the largest magnitude of a group is below this, `round_whole` treats the group as zeros."""

LANES: Final = 16
"""Lanes of a vector in the order of a sum, on every processor."""

_BLOCK: Final = 1 << 20
"""Weights of a product converted at a time."""

LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts (Cody and Waite): the first has 15 trailing zero bits, so that n * LN2_HIGH is exact for |n| < 2^15.
LN2_HIGH = np.float32(0.693145751953125)
LN2_LOW = np.float32(1.4286068203094172e-06)
# Taylor coefficients, highest power first; for |r| <= 0.35 the first omitted term is below 6e-9 of the result.
EXP = tuple(np.float32(c) for c in (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0))
_EXP2 = tuple(np.float32(0.6931471805599453**k / f) for k, f in enumerate((1, 1, 2, 6, 24, 120, 720, 5040)))[::-1]

_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_FRACTION_BITS = np.int32(0x007FFFFF)
# (log(1 + f) - f + f^2 / 2) / f^3 for sqrt(1/2) <= 1 + f < sqrt(2), highest power first: a minimax fit of log(1 + f) /
# f by Lawson's iteration (1961), with a maximum error of 7.3e-10.
_LOG1P = tuple(
    np.float32(c)
    for c in (
        0.06915425,
        -0.11789835,
        0.11872966,
        -0.12384343,
        0.14218658,
        -0.16669251,
        0.20002227,
        -0.24999987,
        0.3333331,
    )
)


def horner(r: F32, coefficients: tuple[np.float32, ...]) -> F32:
    """Evaluate a polynomial, highest power first, with a `fused` step for each further coefficient."""
    total = np.full_like(r, coefficients[0])
    for coefficient in coefficients[1:]:
        total = fused(total, r, coefficient)
    return total


def _power_of_two(n: F32) -> F32:
    """Return 2^n for whole n from -127 to 127; -127 gives 0, as does NaN."""
    whole = np.where(np.isnan(n), np.float32(-127), n).astype(np.int32)
    power: F32 = ((whole + 127) << 23).view(np.float32)
    return power


def exp(x: F32) -> F32:
    """Compute e^x for f32 of any shape, within 2 units in the last place; NaN stays NaN.

    The argument is limited to -88 and 88.3. The result is 0 below -87.68.
    """
    bounded = np.clip(x, np.float32(-88), np.float32(88.3))
    n = np.rint(bounded * LOG2_E)
    r = fused(n, -LN2_LOW, fused(n, -LN2_HIGH, bounded))
    return horner(r, EXP) * _power_of_two(n)


def exp2(x: F32) -> F32:
    """Compute 2^x for f32 of any shape, within 2 units in the last place; NaN stays NaN.

    The argument is limited to -127 and 127.4. The result is 0 below -126.5.
    """
    bounded = np.clip(x, np.float32(-127), np.float32(127.4))
    n = np.rint(bounded)
    return horner(bounded - n, _EXP2) * _power_of_two(n)


def log(x: F32) -> F32:
    """Compute the natural logarithm of positive normal f32 of any shape, within one unit in the last place."""
    shifted = x.view(np.int32) - _SQRT_HALF_BITS
    exponent = (shifted >> np.int32(23)).astype(np.float32)
    f = ((shifted & _FRACTION_BITS) + _SQRT_HALF_BITS).view(np.float32) - np.float32(1)
    square = f * f
    tail = np.full_like(f, _LOG1P[0])
    for coefficient in _LOG1P[1:]:
        tail = tail * f + coefficient
    correction = ((f * square) * tail + exponent * LN2_LOW) - np.float32(0.5) * square
    return (f + correction) + exponent * LN2_HIGH


def squares_sum(x: F32) -> F32:
    """Sum the squares over the last axis: [..., n] -> [...].

    Element i is added by `fused` to accumulator i mod 64. The accumulators are four vectors of 16 lanes, added as
    (v0 + v1) + (v2 + v3), and `fold` adds the lanes.
    """
    x = _padded(x, 64)
    total = np.zeros((*x.shape[:-1], 64), np.float32)
    for begin in range(0, x.shape[-1], 64):
        part = x[..., begin : begin + 64]
        total = fused(part, part, total)
    return _fold_64(total)


def lanes_products(x: F32, w: F32) -> F32:
    """Multiply x [M, K] by each row of w [N, K] -> [M, N], summed in 64 accumulators as in `squares_sum`."""
    x, w = _padded(x, 64), _padded(w, 64)
    total = np.zeros((len(x), len(w), 64), np.float32)
    for begin in range(0, x.shape[1], 64):
        part = slice(begin, begin + 64)
        total = fused(w[None, :, part], x[:, None, part], total)
    return _fold_64(total)


def _fold_64(total: F32) -> F32:
    """Add 64 accumulators along the last axis: (v0 + v1) + (v2 + v3), then `fold`."""
    v0, v1, v2, v3 = (total[..., begin : begin + LANES] for begin in range(0, 64, LANES))
    return fold((v0 + v1) + (v2 + v3))


def lanes_sum(x: F32) -> F32:
    """Sum over the last axis: [..., n] -> [...]. Element i is added to lane i mod 16, then `fold` adds the lanes."""
    x = _padded(x, LANES)
    total = np.zeros((*x.shape[:-1], LANES), np.float32)
    for begin in range(0, x.shape[-1], LANES):
        total = total + x[..., begin : begin + LANES]
    return fold(total)


def fold(lanes: F32) -> F32:
    """Add the upper half of the last axis to the lower half until one number is left: [..., 2^n] -> [...]."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def _padded(x: F32, multiple: int) -> F32:
    """Pad the last axis with zeros to a multiple of a number."""
    return np.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, -x.shape[-1] % multiple)])


def tree_sum(x: F32) -> F32:
    """Sum over the last axis as a binary tree: pad with zeros to a power of two, then add halves.

    [..., n] -> [...]. The order depends only on n; `numpy.sum` guarantees no order.
    """
    n = x.shape[-1]
    return fold(_padded(x, 1 << max(n - 1, 0).bit_length()))


def round_bf16(x: F32) -> F32:
    """Round to the nearest bfloat16, ties to even, and back to f32."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def input_bf16(x: F32) -> F32:
    """Round the inputs of a product to bfloat16; subnormal inputs are 0."""
    return round_bf16(flushed(x))


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


def product(x: F32, w: NDArray[Any]) -> F32:
    """Multiply x [M, K] by w [N, K] (any float type) transposed -> [M, N].

    Each element starts at 0 and adds its K terms in ascending order by `fused`. If w is bfloat16, x is rounded to it,
    and terms are added as `add_pairs` states. The order of BLAS and einsum depends on the shape, so neither is used.
    """
    rows, depth = x.shape
    out = np.zeros((rows, len(w)), np.float32)
    pairs = w.dtype == ml_dtypes.bfloat16
    x, add = (input_bf16(x), add_pairs) if pairs else (x, add_products)
    step = max(1, _BLOCK // max(1, depth))
    for begin in range(0, len(w), step):
        part = slice(begin, begin + step)
        out[:, part] = add(out[:, part], x, w[part].T.astype(np.float32, order="C"))
    return out


def best_tokens(logits: F32) -> NDArray[np.int32]:
    """Return the most likely token of each row, the lowest id among equals; -1 for a row that is not finite."""
    finite = np.isfinite(logits).all(axis=1)
    return np.where(finite, logits.argmax(axis=1), -1).astype(np.int32)
