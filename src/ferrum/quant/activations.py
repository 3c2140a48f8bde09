"""Products of quantised weights: what native kernels reproduce bit for bit.

    1. A row of activations is cut into the weight's groups; each group is rounded to int8 with a scale in float32:
           largest = max |x|;  scale = largest / 127;  code = rint(x * (127 / largest))
       each a single float32 operation, rint to the nearest and ties to even. (|x| <= largest, so that |code| <= 127
       without clipping.) The maximum is that of the bit patterns without sign: a NaN is larger than all else.
       A group whose largest is below 2^-64 counts as zeros (codes and scale 0): all further numbers are then normal.
       A group whose largest is not finite has codes 0 and the scale NaN: every output of the row becomes NaN.
    2. Per group the exact integer sum of activation code x weight code.
    3. y starts at 0 and takes the groups in ascending order:
           y = y + float32(sum) * (float32(weight scale) * activation scale)
       three roundings per group, no fused multiply-add. The sums are below 2^24 and thus exact in float32.

Nothing here depends on how many rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import F32
from ferrum.kernels.reference.math import ordered_sum
from ferrum.quant.groups import GROUPS, in_groups

NUMERICS_ID: Final = "grouped-1"
"""The version of this arithmetic: packed directories name it, and another version refuses them."""

LEAST: Final = np.float32(2.0**-64)
"""The smallest magnitude that keeps a group from counting as zeros."""

_LEVELS: Final = np.float32(127)

# Codes of activations go to +-127 and those of weights to +-128: any partial sum of a group is an integer below 2^24.
assert max(GROUPS) * 127 * 128 < 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedRows:
    """Rows of activations as integers.

    Attributes:
        codes: int8 [M, G, group].
        scales: f32 [M, G].
    """

    codes: NDArray[np.int8]
    scales: F32


def quantize_rows(x: F32, group: int) -> QuantizedRows:
    """Step 1 of the module's arithmetic: x [M, K] f32, an incomplete last group filled up with zeros."""
    groups = in_groups(x, group)
    largest = np.abs(groups).max(axis=-1)  # numpy's maximum hands NaN on
    finite = np.isfinite(largest)
    used = finite & (largest >= LEAST)
    factor = np.divide(_LEVELS, largest, out=np.zeros_like(largest), where=used)
    with np.errstate(invalid="ignore"):  # 0 * infinity, in a group that is not used
        codes = np.rint(groups * factor[..., None])
    codes[~used] = 0
    scales = np.where(used, largest / _LEVELS, np.where(finite, np.float32(0), np.float32(np.nan)))
    return QuantizedRows(codes.astype(np.int8), scales)


def grouped_product(x: QuantizedRows, codes: NDArray[np.int8], scales: NDArray[np.float16]) -> F32:
    """Steps 2 and 3 of the module's arithmetic.

    Args:
        x: M rows.
        codes: int8 [n, G, group] of n outputs.
        scales: float16 [n, G].

    Returns:
        f32 [M, n].
    """
    left = np.ascontiguousarray(x.codes.transpose(1, 0, 2), np.float32)  # [G, M, group]
    right = np.ascontiguousarray(codes.transpose(1, 2, 0), np.float32)  # [G, group, n]
    sums = left @ right  # [G, M, n]: exact in whatever order BLAS adds, since every partial sum is exact
    terms = np.zeros((len(sums) + 1, *sums.shape[1:]), np.float32)
    factors = terms[1:]
    np.multiply(scales.astype(np.float32).T[:, None, :], x.scales.T[:, :, None], out=factors)
    np.multiply(sums, factors, out=factors)
    return ordered_sum(terms)
