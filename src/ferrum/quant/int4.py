"""4-bit integers in groups: symmetric (a superset of GGUF's Q4_0), or with zero points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import F32, Int32
from ferrum.kernels.reference.reference_math import tree_sum
from ferrum.quant.scale_groups import float16_scales, for_each_piece, group_count, in_groups, reciprocal
from ferrum.quant.weight import RowMajorWeight

CLIPPING: Final = (0.97, 0.94, 0.88, -1.12)
"""Multiples of a group's plain scale to try. A negative multiple reverses the range -8..7.

Chosen greedily from 32 candidates by the squared error, on weights of the built-in model, a normal and a Student's t
distribution (4 degrees of freedom), in groups of 32 and 128. These four remove 7 to 11% of the error; ten remove 1%
more.
"""

_MIDDLE: Final = 8
_LEVELS: Final = 15


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Int4Weight(RowMajorWeight):
    """A `Weight` of 4-bit codes 0..15; the number is code - zero point.

    Attributes:
        packed: uint8 [N, G x group / 2]: byte j of a row has input 2j in its low four bits and 2j + 1 in its high four
            bits. Codes of number 0 pad the last group.
        zero_points: uint8 [N, G], 0..15; None: always 8 (symmetric).
    """

    packed: NDArray[np.uint8]
    zero_points: NDArray[np.uint8] | None = None

    @property
    def format(self) -> str:
        return "int4"

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scales.nbytes + (0 if self.zero_points is None else self.zero_points.nbytes)

    def signed_codes(self, rows: slice | Int32) -> NDArray[np.int8]:
        packed = self.packed[rows]
        codes = np.empty((*packed.shape, 2), np.int8)
        codes[..., 0], codes[..., 1] = packed & 15, packed >> 4
        codes = codes.reshape(len(packed), self.scales.shape[1], self.group)
        zero = np.int8(_MIDDLE) if self.zero_points is None else self.zero_points[rows].astype(np.int8)[..., None]
        return codes - zero


def quantize_int4(values: NDArray[Any], group: int = 32, clipping: Sequence[float] = CLIPPING) -> Int4Weight:
    """Quantise a matrix symmetrically as GGUF's Q4_0, then try other scales per group.

    Q4_0: scale = w / -8 for the w of largest magnitude (the first of equals), code = w / scale + 8, rounded and limited
    to 15. A multiple of that scale, rounded to float16, replaces it if the group's squared error is smaller. Numbers
    that came from Q4_0 have no error and stay.

    Args:
        values: [N, K] of any float type.
        group: inputs that share a scale, one of `GROUPS`.
        clipping: multiples to try; without any, groups of 32 have exactly the numbers of Q4_0.

    Raises:
        ConfigError: weights are not finite, or exceed 8 times the largest float16.
    """
    count = group_count(values.shape[1], group)
    packed = np.empty((len(values), count * group // 2), np.uint8)
    scales = np.empty((len(values), count), np.float16)

    def round_piece(rows: slice) -> None:
        blocks = in_groups(values[rows], group)
        scales[rows], codes = _plain(blocks)
        _improve(blocks, scales[rows], codes, clipping)
        packed[rows] = pack_nibbles(codes)

    for_each_piece(values.shape, round_piece)
    return Int4Weight(scales=scales, inputs=values.shape[1], group=group, packed=packed)


def _plain(blocks: F32) -> tuple[NDArray[np.float16], F32]:
    """Return the scales [n, G] and codes -8..7 [n, G, group] of Q4_0."""
    exact = _largest(blocks) / np.float32(-_MIDDLE)
    scales = float16_scales(exact, "int4")
    scaled = blocks * reciprocal(np.where(scales == 0, np.float32(0), exact))[..., None]
    codes = np.minimum(np.trunc(scaled + np.float32(8.5)), _LEVELS) - np.float32(_MIDDLE)
    return scales, codes


def _largest(blocks: F32) -> F32:
    """Return the number of largest magnitude of each group, the first of equals."""
    smallest, largest = blocks.min(axis=-1), blocks.max(axis=-1)
    found: F32 = np.where(largest > -smallest, largest, smallest)
    equal = largest == -smallest
    candidates = blocks[equal]
    first = np.abs(candidates).argmax(axis=-1)[..., None]
    found[equal] = np.take_along_axis(candidates, first, axis=-1)[..., 0]
    return found


def _improve(blocks: F32, scales: NDArray[np.float16], codes: F32, clipping: Sequence[float]) -> None:
    """Replace scales and codes of groups for which a multiple has a smaller error."""
    plain = scales.astype(np.float32)
    least = _squared_error(blocks, codes, plain)
    for multiple in clipping:
        tried = (plain * np.float32(multiple)).astype(np.float16)
        scale = tried.astype(np.float32)
        scaled = np.clip(np.rint(blocks * reciprocal(scale)[..., None]), -_MIDDLE, _LEVELS - _MIDDLE)
        error = _squared_error(blocks, scaled, scale)
        better = error < least
        least[better], scales[better] = error[better], tried[better]
        np.copyto(codes, scaled, where=better[..., None])


def _squared_error(blocks: F32, codes: F32, scales: F32) -> F32:
    """Return the squared error per group. The order of additions is fixed, so all machines choose the same scales."""
    difference = blocks - codes * scales[..., None]
    return tree_sum(difference * difference)


def quantize_int4_zero_points(values: NDArray[Any], group: int = 128) -> Int4Weight:
    """Quantise a matrix so that the codes 0..15 span the range of each group, including 0.

    scale = (largest - smallest) / 15, rounded to float16; zero point = -smallest / scale. Useful for wide groups and
    asymmetric weights; in groups of 32 `quantize_int4` has about the same error.

    Args:
        values: [N, K] of any float type.
        group: inputs that share a scale, one of `GROUPS`.

    Raises:
        ConfigError: weights are not finite, or the range exceeds 15 times the largest float16.
    """
    count = group_count(values.shape[1], group)
    packed = np.empty((len(values), count * group // 2), np.uint8)
    scales = np.empty((len(values), count), np.float16)
    zero_points = np.empty((len(values), count), np.uint8)

    def round_piece(rows: slice) -> None:
        blocks = in_groups(values[rows], group)
        smallest = np.minimum(blocks.min(axis=-1), np.float32(0))
        largest = np.maximum(blocks.max(axis=-1), np.float32(0))
        scales[rows] = float16_scales((largest - smallest) / np.float32(_LEVELS), "int4")
        inverse = reciprocal(scales[rows].astype(np.float32))
        zero = np.minimum(np.rint(-smallest * inverse), np.float32(_LEVELS))
        codes = np.clip(np.rint(blocks * inverse[..., None]) + zero[..., None], 0, _LEVELS)
        zero_points[rows], packed[rows] = zero, pack_nibbles(codes - np.float32(_MIDDLE))

    for_each_piece(values.shape, round_piece)
    return Int4Weight(scales=scales, inputs=values.shape[1], group=group, packed=packed, zero_points=zero_points)


def pack_nibbles(codes: F32 | NDArray[np.int8]) -> NDArray[np.uint8]:
    """Pack codes -8..7 [n, G, group] two per byte -> uint8 [n, G x group / 2], as `Int4Weight.packed`."""
    unsigned = (codes + codes.dtype.type(_MIDDLE)).astype(np.uint8).reshape(len(codes), -1, 2)
    return unsigned[..., 0] | unsigned[..., 1] << np.uint8(4)
