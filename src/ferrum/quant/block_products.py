"""Products of weights in blocks. Native kernels reproduce them bit for bit.

    1. Cut each row of inputs into 32 consecutive numbers. Round them to int8 with one float32 scale, by `round_whole`
       with 127 levels. If they are not finite the scale is NaN, which makes every output of the row NaN.
    2. For each group of the weight take the exact integer sum of input code x weight integer, and for a format with
       minima the exact sum of the input codes.
    3. y starts at 0 and adds the groups in ascending order:
           y = fused(float32(sum), weight scale x input scale, y)
           y = fused(minimum, float32(sum of codes) x input scale, y)     with minima only
       where x is a rounded product and fused(a, b, c) is a * b + c with one rounding. All sums are below 2^24.

No result depends on the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import F32
from ferrum.kernels.reference.fused_sums import fused
from ferrum.kernels.reference.reference_math import round_whole

PRODUCTS_ID: Final = "blocks-1"
"""Version of this arithmetic. Packed directories record it; another version refuses to load them."""

ROUNDED: Final = 32
"""Inputs of a row that share a scale: a multiple of every group."""

_LEVELS: Final = 127


@dataclass(frozen=True, slots=True, eq=False)
class RoundedRows:
    """Rows of inputs as integers.

    Attributes:
        codes: int8 [M, G, group] with the G groups of the weight.
        scales: f32 [M, G].
    """

    codes: NDArray[np.int8]
    scales: F32


def round_rows(x: F32, group: int, groups: int) -> RoundedRows:
    """Run step 1 on x [M, K] f32. Zeros pad rows to `groups` groups of the weight."""
    parts = -(-groups * group // ROUNDED)
    whole = np.zeros((len(x), parts * ROUNDED), np.float32)
    whole[:, : x.shape[1]] = x
    codes, scales = round_whole(whole.reshape(len(x), parts, ROUNDED), _LEVELS)
    in_groups = np.ascontiguousarray(codes, np.int8).reshape(len(x), parts * (ROUNDED // group), group)
    return RoundedRows(in_groups[:, :groups], np.repeat(scales, ROUNDED // group, axis=1)[:, :groups])


def block_product(x: RoundedRows, integers: NDArray[np.int8], scales: F32, minima: F32 | None) -> F32:
    """Run steps 2 and 3.

    Args:
        x: M rows.
        integers: int8 [n, G, group] of n outputs.
        scales: f32 [n, G].
        minima: f32 [n, G], or None.

    Returns:
        f32 [M, n].
    """
    left = np.ascontiguousarray(x.codes.transpose(1, 0, 2), np.float32)  # [G, M, group]
    right = np.ascontiguousarray(integers.transpose(1, 2, 0), np.float32)  # [G, group, n]
    sums = left @ right  # [G, M, n]: exact in any order of additions, because every partial sum is exact
    code_sums = left.sum(axis=2)
    total = np.zeros(sums.shape[1:], np.float32)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for group, factor in enumerate(x.scales.T[..., None]):  # [M, 1]
            total = fused(sums[group], scales[:, group] * factor, total)
            if minima is not None:
                total = fused(minima[:, group][None, :], code_sums[group][:, None] * factor, total)
    return total
