"""Search of a group's scale and minimum by the weighted squared error.

A candidate maps the group's range to codes. Least squares give the best scale (and minimum) for these codes and the
error that remains. Groups are rows of the last axis. Each number is a single f32 operation in a fixed order, so the
native quantiser (`native/tier/quantize.cpp`) and every machine find the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import ConfigError
from ferrum.kernels.operations import F32
from ferrum.kernels.reference.reference_math import fold, tree_sum

SMALLEST: Final = np.float32(2.0**-40)
"""Groups below this are zeros: no scale in float16 reaches them."""

_ROWS: Final = 1024
"""Rows whose squares are added at a time."""

_LARGEST: Final = np.float32(65504)  # of float16


@dataclass(frozen=True, slots=True)
class Search:
    """Candidates of a search, in codes, by the number of bits of a code.

    Attributes:
        symmetric: codes of the number of largest magnitude.
        affine: quarters of codes by which the range exceeds the codes, below and above.
        rounds: of least squares and rounding afterwards.
        steps: of a group's integer scale in a block to try in each of these rounds.
    """

    symmetric: dict[int, tuple[float, ...]]
    affine: dict[int, tuple[tuple[int, int], ...]]
    rounds: int = 0
    steps: tuple[int, ...] = ()


QUICK: Final = Search(
    symmetric={4: (-8, -8.5, -7.25, -8.75, -7.75, -7), 5: (-16, -15, -16.5, -14, -15.75, -15.25),
               6: (-32, -31, -30, -29, -28, -27), 8: (-127,)},
    affine={4: ((0, 0), (-1, 2), (2, 0), (0, 1), (-4, 1), (1, 0), (1, -4), (2, -1)),
            5: ((0, 0), (-3, 1), (1, -1), (-1, 1), (-4, -4), (-1, -4), (-4, -1), (1, 0))},
)  # fmt: skip
"""For loading. Chosen greedily by the squared error on weights of a real model, normal ones and Student's t ones."""

_MORE: Final = ((0, 2), (2, 2), (-4, -4), (0, -1), (-1, 0), (-1, -3), (-4, -1), (1, 2), (2, 1), (3, 0), (0, 3), (-1, 1),
                (1, 1), (-4, 0), (-3, -1))  # fmt: skip

THOROUGH: Final = Search(
    symmetric={4: tuple(-n / 4 for n in range(26, 38)), 5: tuple(-n / 4 for n in range(53, 70)),
               6: tuple(-n / 2 for n in range(52, 66)), 8: (-127, -126.5, -126, -125.5)},
    affine={bits: tuple(dict.fromkeys((*QUICK.affine[bits], *_MORE))) for bits in (4, 5)},
    rounds=3, steps=(-1, 1, -2, 2),
)  # fmt: skip
"""For `ferrum quantize`."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Numbers of a piece of a matrix.

    Attributes:
        x: [n, G, group]; the last axis is the slowest in memory, so that sums over a group use whole vectors.
        weights: of their squared errors, [n or 1, G, group].
    """

    x: F32
    weights: F32

    def sum(self, terms: F32) -> F32:
        """Return the weighted sums of terms over each group, in the order of `fold`."""
        return fold(terms * self.weights)

    def weigh(self, terms: F32) -> F32:
        """Return terms times their weights."""
        return terms * self.weights

    def total(self) -> F32:
        """Return the sum of the weights of each group, [n or 1, G]."""
        return fold(self.weights)

    def codes(self, scale: F32, minimum: F32 | None, low: int, high: int) -> F32:
        """Return the nearest codes of the numbers."""
        shifted = self.x if minimum is None else self.x - minimum[..., None]
        return nearest(shifted * inverse(scale)[..., None], low, high)

    def error(self, codes: F32, scale: F32, minimum: F32 | None) -> F32:
        """Return the squared error of each group."""
        rest = self.x - codes * scale[..., None]
        if minimum is not None:
            rest = rest - minimum[..., None]
        return self.sum(rest * rest)


def grouped(values: NDArray[Any], group: int, groups: int) -> F32:
    """Return rows [n, K] of any float type as f32 [n, G, group], completed with zeros."""
    rows, inputs = values.shape
    out = np.zeros((group, rows, groups), np.float32).transpose(1, 2, 0)
    floats = values.astype(np.float32, copy=False)
    whole = inputs // group
    out[:, :whole] = floats[:, : whole * group].reshape(rows, whole, group)
    if inputs > whole * group:
        out[:, whole, : inputs - whole * group] = floats[:, whole * group :]
    return out


def own_weights(x: F32, groups: int) -> F32:
    """Return the weights of numbers [n, G, group] of unknown importance: 1 + x^2 / the mean of a block's squares.

    Large weights tend to belong to inputs that matter: this lowers the KL divergence on a real model, although it
    raises the squared error (`docs/quantization.md`).

    Args:
        x: the numbers.
        groups: of a block.
    """
    squares = x * x
    sums = fold(fold(squares).reshape(len(x), -1, groups))
    mean = sums / np.float32(groups * x.shape[2])
    factor = np.divide(np.float32(1), mean, out=np.zeros_like(mean), where=mean >= SMALLEST * SMALLEST)
    weights: F32 = squares * np.repeat(factor, groups, axis=1)[..., None] + np.float32(1)
    return weights


def column_importance(values: NDArray[Any]) -> F32:
    """Return the mean square of each input's weights in a matrix [N, K], relative to the mean of all, f32 [K].

    The importance of a head's inputs, if none is known: hidden states are large where the weights are. On a real model
    it more than halves the KL divergence that a rounded head causes; other matrices do not gain.
    """
    total = np.zeros(values.shape[1], np.float32)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for begin in range(0, len(values), _ROWS):
            part = values[begin : begin + _ROWS].astype(np.float32)
            total = total + tree_sum((part * part).T)
        return ratio(total, tree_sum(total) / np.float32(len(total)))


def nearest(x: F32, low: int, high: int) -> F32:
    """Return the nearest integers within two bounds, ties to even."""
    return np.rint(np.clip(x, np.float32(low), np.float32(high)))


def inverse(x: F32, numerator: float = 1.0) -> F32:
    """Return numerator / x, and 0 where |x| is below `SMALLEST`."""
    return np.divide(np.float32(numerator), x, out=np.zeros_like(x), where=np.abs(x) >= SMALLEST)


def ratio(a: F32, b: F32) -> F32:
    """Return a / b, and 0 where b is not positive."""
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape), np.float32), where=b > 0)


def half(x: F32) -> F32:
    """Round to float16, limited to its largest number; a zero becomes a positive one."""
    rounded: F32 = np.clip(x + np.float32(0), -_LARGEST, _LARGEST).astype(np.float16).astype(np.float32)
    return rounded


def keep(better: NDArray[np.bool_], held: tuple[F32, ...], found: tuple[F32, ...]) -> None:
    """Copy what was found for the groups where it is better."""
    for old, new in zip(held, found, strict=True):
        np.copyto(old, new, where=better[..., None] if old.ndim > better.ndim else better)


def signed_largest(x: F32) -> F32:
    """Return the number of largest magnitude over the last axis, the negative one of equals."""
    low, high = x.min(axis=-1), x.max(axis=-1)
    largest: F32 = np.where(high > -low, high, low)
    return largest


def refuse_scales(format: str, *exact: F32) -> None:
    """Raise ConfigError if weights are not finite, or scales exceed float16."""
    for each in exact:
        if not np.isfinite(each).all():
            raise scale_error(format, finite=False)
    if any((np.abs(each) >= 65520).any() for each in exact):
        raise scale_error(format, finite=True)


def scale_error(format: str, *, finite: bool) -> ConfigError:
    """Return the error for weights without scales in float16."""
    reason = "too large for scales in float16" if finite else "not finite"
    return ConfigError(f"cannot quantize to {format}: weights are {reason}", param="quantize")


def fit_symmetric(groups: Groups, low: int, high: int, candidates: tuple[float, ...]) -> F32:
    """Return the best scale of each group, in f32."""
    largest, weighed = signed_largest(groups.x), groups.weigh(groups.x)
    best, scale = np.full(largest.shape, -1, np.float32), np.zeros_like(largest)
    for code in candidates:
        codes = nearest(groups.x * inverse(largest, code)[..., None], low, high)
        products, squares = fold(weighed * codes), fold(groups.weigh(codes) * codes)
        fitted = ratio(products, squares)
        explained = products * fitted
        keep(explained > best, (best, scale), (explained, fitted))
    return scale


def fit_affine(
    groups: Groups, top: int, candidates: tuple[tuple[int, int], ...], *, positive: bool = True
) -> tuple[F32, F32]:
    """Return the best scale and minimum of each group, in f32.

    Args:
        groups: the numbers.
        top: the largest code.
        candidates: as in `Search`.
        positive: whether minima may be positive.
    """
    smallest = groups.x.min(axis=-1)
    if not positive:
        smallest = np.minimum(smallest, np.float32(0))
    shifted = groups.x - smallest[..., None]
    span, weighed, total = groups.x.max(axis=-1) - smallest, groups.weigh(shifted), groups.total()
    mean = ratio(fold(weighed), total)
    best, scale, minimum = np.full(span.shape, -1, np.float32), np.zeros_like(span), smallest.copy()
    for below, above in candidates:
        steps = inverse(span, top + (below + above) / 4)[..., None]
        codes = nearest(shifted * steps - np.float32(below / 4), 0, top)
        weighed_codes = groups.weigh(codes)
        sums = _Sums(total, mean, fold(weighed_codes), fold(weighed_codes * codes), fold(weighed * codes))
        explained, fitted, offset = sums.line()
        start = smallest + offset
        if not positive:
            through_zero = start > 0
            others = sums.through(smallest)
            keep(through_zero, (explained, fitted, start), (*others, np.zeros_like(start)))
        keep(explained > best, (best, scale, minimum), (explained, fitted, start))
    return scale, minimum


class _Sums(NamedTuple):
    """Weighted sums of each group: of the weights, the numbers' mean, sums of codes, of their squares and products."""

    total: F32
    mean: F32
    codes: F32
    squares: F32
    products: F32

    def line(self) -> tuple[F32, F32, F32]:
        """Return the squares that the best line explains, its scale, and its number at code 0."""
        codes_mean = ratio(self.codes, self.total)
        covariance = self.products - self.mean * self.codes
        fitted = ratio(covariance, self.squares - codes_mean * self.codes)
        return covariance * fitted, fitted, self.mean - fitted * codes_mean

    def through(self, origin: F32) -> tuple[F32, F32]:
        """Return the same of the best line through 0, for numbers that had `origin` subtracted."""
        products, mean = self.products + origin * self.codes, self.mean + origin
        fitted = ratio(products, self.squares)
        return products * fitted - mean * (mean * self.total), fitted
