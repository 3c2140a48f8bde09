"""Quantisers of matrices in numpy, one for each format: the reference of the native ones.

`QUICK` searches serve loading, `THOROUGH` ones `ferrum quantize`. Rows are independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.cpu.library import available_threads
from ferrum.kernels.operations import F32
from ferrum.kernels.reference.reference_math import fold
from ferrum.quant.block_format import BLOCK_FORMATS, BlockFormat
from ferrum.quant.block_weight import BlockRows
from ferrum.quant.scale_search import (
    QUICK,
    Groups,
    Search,
    fit_affine,
    fit_symmetric,
    grouped,
    half,
    inverse,
    keep,
    own_weights,
    ratio,
    refuse_scales,
    signed_largest,
)
from ferrum.quant.superblocks import superblocks

_PIECE: Final = 1 << 17
"""Numbers quantised at a time, so that temporary arrays stay in the second-level cache."""

_Piece = Callable[[BlockFormat, Groups, Search], BlockRows]


@dataclass(frozen=True, slots=True)
class Quantizer:
    """The quantiser of a format.

    Attributes:
        kind: the format.
        piece: quantises some rows.
    """

    kind: BlockFormat
    piece: _Piece

    def __call__(self, values: NDArray[Any], importance: F32 | None = None, search: Search = QUICK) -> BlockRows:
        """Quantise a matrix.

        Args:
            values: [N, K] of any float type. Zeros complete the last block.
            importance: weights of the inputs' squared errors, f32 [K], positive; None: `own_weights`.
            search: how many candidates are tried.

        Raises:
            ConfigError: weights are not finite, or too large for the format's scales.
        """
        rows, inputs = values.shape
        count = self.kind.blocks(inputs) * self.kind.groups
        given = None if importance is None else grouped(importance[None], self.kind.group, count)

        def quantize(part: slice) -> BlockRows:
            x = grouped(values[part], self.kind.group, count)
            with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                weights = own_weights(x, self.kind.groups) if given is None else given
                return self.piece(self.kind, Groups(x, weights), search)

        step = max(1, _PIECE // max(1, inputs))
        parts = [slice(begin, begin + step) for begin in range(0, max(rows, 1), step)]
        with ThreadPoolExecutor(available_threads()) as team:
            return _joined(list(team.map(quantize, parts)))


def _joined(pieces: list[BlockRows]) -> BlockRows:
    """Return rows that follow each other as one."""
    held = {field.name: [getattr(piece, field.name) for piece in pieces] for field in fields(BlockRows)}
    whole: dict[str, Any] = {name: None if parts[0] is None else np.concatenate(parts) for name, parts in held.items()}
    return BlockRows(**whole)


def _q8_0(kind: BlockFormat, groups: Groups, search: Search) -> BlockRows:
    """Return the numbers of ggml's `quantize_row_q8_0_ref`, or better ones if the search is thorough."""
    exact = np.abs(groups.x).max(axis=-1) / np.float32(127)
    refuse_scales(kind.name, exact)
    scale = half(exact)
    scaled = groups.x * np.where(scale == 0, np.float32(0), inverse(exact))[..., None]
    whole = np.trunc(scaled)
    codes = whole + np.trunc(np.float32(2) * (scaled - whole))  # halves away from zero
    if search.rounds > 0:
        _improve(groups, (scale, codes), fit_symmetric(groups, -127, 127, search.symmetric[8]), 127, search.rounds)
    return _stored(kind, codes, scale)


def _symmetric(kind: BlockFormat, groups: Groups, search: Search) -> BlockRows:
    low, high = -kind.offset, kind.offset - 1
    exact = signed_largest(groups.x) / np.float32(low)
    refuse_scales(kind.name, exact)
    scale = half(exact)
    codes = groups.codes(scale, None, low, high)
    fitted = fit_symmetric(groups, low, high, search.symmetric[kind.bits])
    _improve(groups, (scale, codes), fitted, high, search.rounds, low)
    return _stored(kind, codes, scale)


def _improve(
    groups: Groups, held: tuple[F32, F32], fitted: F32, high: int, rounds: int, low: int | None = None
) -> None:
    """Replace scales and codes of groups where fitted scales have a smaller error."""
    least = groups.error(held[1], held[0], None)
    for again in range(rounds + 1):
        scale = half(fitted)
        codes = groups.codes(scale, None, -high if low is None else low, high)
        error = groups.error(codes, scale, None)
        keep(error < least, (*held, least), (scale, codes, error))
        if again < rounds:
            weighed = groups.weigh(codes)
            fitted = ratio(fold(weighed * groups.x), fold(weighed * codes))


def _affine(kind: BlockFormat, groups: Groups, search: Search) -> BlockRows:
    top = (1 << kind.bits) - 1
    smallest = groups.x.min(axis=-1)
    exact = (groups.x.max(axis=-1) - smallest) / np.float32(top)
    refuse_scales(kind.name, exact, smallest)
    scale, minimum = half(exact), half(smallest)
    codes = groups.codes(scale, minimum, 0, top)
    least = groups.error(codes, scale, minimum)
    fitted, start = fit_affine(groups, top, search.affine[kind.bits])
    total = groups.total()
    mean = ratio(groups.sum(groups.x), total)
    for again in range(search.rounds + 1):
        tried, lowest = half(fitted), half(start)
        found = groups.codes(tried, lowest, 0, top)
        error = groups.error(found, tried, lowest)
        keep(error < least, (scale, minimum, codes, least), (tried, lowest, found, error))
        if again < search.rounds:
            weighed = groups.weigh(found)
            codes_sum = fold(weighed)
            codes_mean = ratio(codes_sum, total)
            covariance = fold(weighed * groups.x) - mean * codes_sum
            fitted = ratio(covariance, fold(weighed * found) - codes_mean * codes_sum)
            start = mean - fitted * codes_mean
    return _stored(kind, codes, scale, minimum)


def _stored(kind: BlockFormat, codes: F32, scale: F32, minimum: F32 | None = None) -> BlockRows:
    stored = np.ascontiguousarray(codes + np.float32(kind.offset)).astype(np.uint8)
    halves = None if minimum is None else minimum.astype(np.float16)
    return BlockRows(codes=stored, d=scale.astype(np.float16), m=halves)


_PIECES: Final[Mapping[str, _Piece]] = {
    "q8_0": _q8_0, "q4_0": _symmetric, "q5_0": _symmetric, "q4_1": _affine, "q5_1": _affine,
    "q4_k": superblocks, "q5_k": superblocks, "q6_k": superblocks,
}  # fmt: skip

QUANTIZERS: Final[Mapping[str, Quantizer]] = {name: Quantizer(BLOCK_FORMATS[name], _PIECES[name]) for name in _PIECES}
"""Quantisers by format."""
