"""Products of quantised weights: what native kernels reproduce bit for bit.

    1. A row of activations is cut into blocks of 128; each block is rounded to int8 with a scale in float32, as
       `round_whole` says by 127. A block that is not finite has the scale NaN: every output of the row becomes NaN.
    2. Of each of the weight's groups, of which a block holds one, two or four, the exact integer sum of activation code
       x weight code.
    3. A block's part starts at 0 and takes its groups in ascending order, y starts at 0 and takes the blocks:
           part = fused(float32(sum), float32(weight scale), part)
           y = fused(part, activation scale, y)
       where fused(a, b, c) is a * b + c with one rounding. The sums are below 2^24 and thus exact in float32.

Nothing here depends on how many rows there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import F32
from ferrum.kernels.reference.reference_math import fused, round_whole
from ferrum.quant.scale_groups import GROUPS, group_count, in_groups

NUMERICS_ID: Final = "grouped-3"
"""The version of this arithmetic: packed directories name it, and another version refuses them."""

BLOCK: Final = 128
"""Activations of a row that share a scale: whole groups of the weight, however large those are."""

_LEVELS: Final = 127

# Codes of activations go to +-127 and those of weights to +-128: any partial sum of a group is an integer below 2^24.
assert max(GROUPS) * 127 * 128 < 1 << 24
assert all(BLOCK % group == 0 for group in GROUPS)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedRows:
    """Rows of activations as integers.

    Attributes:
        codes: int8 [M, G, group], G groups of the weight's.
        scales: f32 [M, B], one for each block.
    """

    codes: NDArray[np.int8]
    scales: F32


def quantize_rows(x: F32, group: int) -> QuantizedRows:
    """Step 1 of the module's arithmetic: x [M, K] f32, incomplete last groups and blocks filled up with zeros."""
    codes, scales = round_whole(in_groups(x, BLOCK), _LEVELS)
    in_order = np.ascontiguousarray(codes, np.int8).reshape(len(x), codes.shape[1] * BLOCK // group, group)
    return QuantizedRows(in_order[:, : group_count(x.shape[1], group)], scales)


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
    together = BLOCK // codes.shape[2]
    total = np.zeros(sums.shape[1:], np.float32)
    for block, factor in enumerate(x.scales.T):
        part = np.zeros_like(total)
        for group in range(block * together, min((block + 1) * together, len(sums))):
            part = fused(sums[group], scales[:, group].astype(np.float32), part)
        total = fused(part, factor[:, None], total)
    return total
