"""Quantisers of matrices in numpy, one for each format: the reference of the native ones.

`QUICK` searches serve loading, `THOROUGH` ones `ferrum quantize`. Rows are independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
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
    nearest,
    own_weights,
    ratio,
    refuse_scales,
    signed_largest,
)

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


# ---- Formats whose blocks have several groups: the scales of groups are integers times the scale of the block ----
#
# The groups' own best scales (`scale_search.py`) give the block's scale and the integers. Least squares then fit the
# scales of the block to the codes, and a thorough search also tries the neighbours of every integer.


@dataclass(slots=True)
class _Blocks:
    """Blocks of a piece of a matrix, and what is known of them so far.

    Attributes:
        kind: the format.
        groups: their numbers.
        d, m: scales of the blocks [n, B], f32 numbers of float16; m of the minima.
        sub, sub_m: integers of the groups [n, G].
        low, high: bounds of codes.
        codes: [n, G, group].
        errors: of the groups.
    """

    kind: BlockFormat
    groups: Groups
    d: F32
    m: F32 | None
    sub: F32
    sub_m: F32
    low: int
    high: int
    codes: F32 = field(init=False)
    errors: F32 = field(init=False)

    def __post_init__(self) -> None:
        """Set the codes and errors of these scales."""
        scale, minimum = self.of_groups(self.d) * self.sub, self.minima(self.m, self.sub_m)
        self.codes = self.groups.codes(scale, minimum, self.low, self.high)
        self.errors = self.groups.error(self.codes, scale, minimum)

    def in_blocks(self, numbers: F32) -> F32:
        """Return numbers of groups [n, G] as [n, B, groups]."""
        return numbers.reshape(len(numbers), -1, self.kind.groups)

    def of_groups(self, numbers: F32) -> F32:
        """Return numbers of blocks [n, B] for their groups."""
        return np.repeat(numbers, self.kind.groups, axis=1)

    def minima(self, m: F32 | None, sub_m: F32) -> F32 | None:
        """Return the minima of groups."""
        return None if m is None else self.of_groups(m) * -sub_m

    def fit_minima(self, scale: F32, codes: F32) -> F32:
        """Return the best integers of the minima for scales and codes of the groups."""
        if self.m is None:
            return self.sub_m
        best = ratio(self.groups.sum(self.groups.x - codes * scale[..., None]), self.groups.total())
        return nearest(best * -self.of_groups(inverse(self.m)), 0, 63)

    def refit(self) -> None:
        """Fit d and m to the codes by least squares, and keep them in blocks whose error shrinks."""
        d, m = self._least_squares()
        scale, minimum = self.of_groups(d) * self.sub, self.minima(m, self.sub_m)
        codes = self.groups.codes(scale, minimum, self.low, self.high)
        errors = self.groups.error(codes, scale, minimum)
        better = fold(self.in_blocks(errors)) < fold(self.in_blocks(self.errors))
        keep(better, (self.d,), (d,))
        if self.m is not None and m is not None:
            keep(better, (self.m,), (m,))
        keep(np.repeat(better, self.kind.groups, axis=1), (self.codes, self.errors), (codes, errors))

    def _least_squares(self) -> tuple[F32, F32 | None]:
        weighed = self.groups.weigh(self.codes)
        sub, sub_m = self.sub, self.sub_m
        squares = self._block_sum(sub * (sub * fold(weighed * self.codes)))
        products = self._block_sum(sub * fold(weighed * self.groups.x))
        if self.m is None:
            return half(ratio(products, squares)), None
        mixed = self._block_sum(sub * (sub_m * fold(weighed)))
        constants = self._block_sum(sub_m * (sub_m * self.groups.total()))
        sums = self._block_sum(sub_m * self.groups.sum(self.groups.x))
        determinant = squares * constants - mixed * mixed
        both = ratio(products * constants - sums * mixed, determinant)
        d = np.where(determinant > 0, both, ratio(products, squares))
        return half(d), half(ratio(products * mixed - sums * squares, determinant))

    def _block_sum(self, numbers: F32) -> F32:
        return fold(self.in_blocks(numbers))

    def step(self, change: int, lowest: int, highest: int) -> None:
        """Try the groups' integer scales plus a number, each with its best minimum."""
        sub = np.clip(self.sub + np.float32(change), np.float32(lowest), np.float32(highest))
        scale = self.of_groups(self.d) * sub
        codes = self.groups.codes(scale, self.minima(self.m, self.sub_m), self.low, self.high)
        sub_m = self.fit_minima(scale, codes)
        minimum = self.minima(self.m, sub_m)
        if minimum is not None:
            codes = self.groups.codes(scale, minimum, self.low, self.high)
        errors = self.groups.error(codes, scale, minimum)
        held = self.sub, self.sub_m, self.codes, self.errors
        keep(errors < self.errors, held, (sub, sub_m, codes, errors))

    def rows(self) -> BlockRows:
        """Return the blocks as they are stored."""
        assert self.kind.sub is not None, "blocks have several groups"
        codes = np.ascontiguousarray(self.codes + np.float32(self.kind.offset)).astype(np.uint8)
        d, sub = self.d.astype(np.float16), self.sub.astype(self.kind.sub)
        if self.m is None:
            return BlockRows(codes=codes, d=d, sub=sub)
        return BlockRows(codes=codes, d=d, m=self.m.astype(np.float16), sub=sub, sub_m=self.sub_m.astype(np.uint8))


def superblocks(kind: BlockFormat, groups: Groups, search: Search) -> BlockRows:
    """Quantise numbers to a format with several groups in a block.

    Raises:
        ConfigError: numbers are not finite, or too large for the scales.
    """
    blocks = _with_minima(kind, groups, search) if kind.minima else _symmetric_superblocks(kind, groups, search)
    lowest, highest = (0, 63) if kind.minima else (-128, 127)
    blocks.refit()
    for _ in range(search.rounds):
        for change in search.steps:
            blocks.step(change, lowest, highest)
        blocks.refit()
    return blocks.rows()


def _symmetric_superblocks(kind: BlockFormat, groups: Groups, search: Search) -> _Blocks:
    low, high = -kind.offset, kind.offset - 1
    refuse_scales(kind.name, signed_largest(groups.x) / np.float32(low * 128))
    scale = fit_symmetric(groups, low, high, search.symmetric[kind.bits])
    in_blocks = scale.reshape(len(scale), -1, kind.groups)
    d = half(signed_largest(in_blocks) / np.float32(-128))
    sub = nearest(scale * np.repeat(inverse(d), kind.groups, axis=1), -128, 127)
    return _Blocks(kind, groups, d, None, sub, np.zeros_like(sub), low, high)


def _with_minima(kind: BlockFormat, groups: Groups, search: Search) -> _Blocks:
    top = (1 << kind.bits) - 1
    smallest = np.minimum(groups.x.min(axis=-1), np.float32(0))
    largest = groups.x.max(axis=-1)
    refuse_scales(kind.name, (largest - smallest) / np.float32(top * 63), smallest / np.float32(63))
    scale, minimum = fit_affine(groups, top, search.affine[kind.bits], positive=False)
    in_blocks = (len(scale), -1, kind.groups)
    d = half(scale.reshape(in_blocks).max(axis=-1) / np.float32(63))
    m = half((-minimum).reshape(in_blocks).max(axis=-1) / np.float32(63))
    sub = nearest(scale * np.repeat(inverse(d), kind.groups, axis=1), 0, 63)
    rounded = np.repeat(d, kind.groups, axis=1) * sub
    codes = groups.codes(rounded, minimum, 0, top)
    best = ratio(groups.sum(groups.x - codes * rounded[..., None]), groups.total())
    sub_m = nearest(best * -np.repeat(inverse(m), kind.groups, axis=1), 0, 63)
    return _Blocks(kind, groups, d, m, sub, sub_m, 0, top)


_PIECES: Final[Mapping[str, _Piece]] = {
    "q8_0": _q8_0, "q4_0": _symmetric, "q5_0": _symmetric, "q4_1": _affine, "q5_1": _affine,
    "q4_k": superblocks, "q5_k": superblocks, "q6_k": superblocks,
}  # fmt: skip

QUANTIZERS: Final[Mapping[str, Quantizer]] = {name: Quantizer(BLOCK_FORMATS[name], _PIECES[name]) for name in _PIECES}
"""Quantisers by format."""
