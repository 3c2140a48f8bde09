"""Products of quantised weights. Native kernels reproduce them bit for bit.

    1. Cut each row of activations into blocks of 128. Round each block to int8 with one float32 scale, by `round_whole`
       with 127 levels. A block that is not finite gets the scale NaN, which makes every output of the row NaN.
    2. For each group of the weight (a block holds one, two or four), take the exact integer sum of activation code x
       weight code.
    3. A block's part starts at 0 and adds its groups in ascending order; y starts at 0 and adds the blocks:
           part = fused(float32(sum), float32(weight scale), part)
           y = fused(part, activation scale, y)
       where fused(a, b, c) is a * b + c with one rounding. The sums are below 2^24 and thus exact in float32.

No result depends on the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import F32
from ferrum.kernels.reference.fused_sums import fused
from ferrum.kernels.reference.reference_math import round_whole
from ferrum.quant.scale_groups import GROUPS, group_count, in_groups

PRODUCTS_ID: Final = "grouped-3"
"""Version of this arithmetic. Packed directories record it; another version refuses to load them."""

BLOCK: Final = 128
"""Activations of a row that share a scale: a multiple of every group size."""

_LEVELS: Final = 127

# Activation codes reach +-127 and weight codes +-128, so every partial sum of a group is an integer below 2^24.
assert max(GROUPS) * 127 * 128 < 1 << 24
assert all(BLOCK % group == 0 for group in GROUPS)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedRows:
    """Rows of activations as integers.

    Attributes:
        codes: int8 [M, G, group] with the G groups of the weight.
        scales: f32 [M, B], one per block.
    """

    codes: NDArray[np.int8]
    scales: F32


def quantize_rows(x: F32, group: int) -> QuantizedRows:
    """Run step 1 on x [M, K] f32. Zeros pad incomplete groups and blocks."""
    codes, scales = round_whole(in_groups(x, BLOCK), _LEVELS)
    in_order = np.ascontiguousarray(codes, np.int8).reshape(len(x), codes.shape[1] * BLOCK // group, group)
    return QuantizedRows(in_order[:, : group_count(x.shape[1], group)], scales)


def grouped_product(x: QuantizedRows, codes: NDArray[np.int8], scales: NDArray[np.float16]) -> F32:
    """Run steps 2 and 3.

    Args:
        x: M rows.
        codes: int8 [n, G, group] of n outputs.
        scales: float16 [n, G].

    Returns:
        f32 [M, n].
    """
    left = np.ascontiguousarray(x.codes.transpose(1, 0, 2), np.float32)  # [G, M, group]
    right = np.ascontiguousarray(codes.transpose(1, 2, 0), np.float32)  # [G, group, n]
    sums = left @ right  # [G, M, n]: exact in any order of additions, because every partial sum is exact
    together = BLOCK // codes.shape[2]
    total = np.zeros(sums.shape[1:], np.float32)
    for block, factor in enumerate(x.scales.T):
        part = np.zeros_like(total)
        for group in range(block * together, min((block + 1) * together, len(sums))):
            part = fused(sums[group], scales[:, group].astype(np.float32), part)
        total = fused(part, factor[:, None], total)
    return total
