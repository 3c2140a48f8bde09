"""8-bit integers in groups, with the numbers of GGUF's Q8_0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import F32, Int32
from ferrum.quant.scale_groups import float16_scales, for_each_piece, group_count, in_groups, reciprocal
from ferrum.quant.weight import RowMajorWeight


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Int8Weight(RowMajorWeight):
    """A `Weight` of int8, symmetric.

    Attributes:
        codes: int8 [N, G x group], row-major, each row padded with zeros.
    """

    codes: NDArray[np.int8]

    @property
    def format(self) -> str:
        return "int8"

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def signed_codes(self, rows: slice | Int32) -> NDArray[np.int8]:
        codes = self.codes[rows]
        return codes.reshape(len(codes), self.scales.shape[1], self.group)


def quantize_int8(values: NDArray[Any], group: int = 32) -> Int8Weight:
    """Quantise a matrix as GGUF's Q8_0: scale = max |w| / 127, code = w / scale, halves away from zero.

    Groups of 32 have exactly the scales and integers of Q8_0. The search of `quantize_int4` is not used: it would
    remove a tenth of the squared error, less than the rounding of activations adds.

    Args:
        values: [N, K] of any float type.
        group: inputs that share a scale, one of `GROUPS`.

    Raises:
        ConfigError: weights are not finite, or exceed 127 times the largest float16.
    """
    count = group_count(values.shape[1], group)
    codes = np.empty((len(values), count * group), np.int8)
    scales = np.empty((len(values), count), np.float16)

    def round_piece(rows: slice) -> None:
        blocks = in_groups(values[rows], group)
        exact = np.abs(blocks).max(axis=-1) / np.float32(127)
        scales[rows] = float16_scales(exact, "int8")
        scaled = blocks * reciprocal(np.where(scales[rows] == 0, np.float32(0), exact))[..., None]
        codes[rows] = round_half_away(scaled).reshape(len(blocks), -1)

    for_each_piece(values.shape, round_piece)
    return Int8Weight(scales=scales, inputs=values.shape[1], group=group, codes=codes)


def round_half_away(x: F32) -> F32:
    """Round to the nearest integer, halves away from zero, as roundf of C."""
    whole = np.trunc(x)
    rounded: F32 = whole + np.trunc(2 * (x - whole))
    return rounded
