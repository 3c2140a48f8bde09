"""Fused sums: one rounding of the exact sum, the pairs of bfloat16, and equality of the library and its emulation."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum.kernels.reference import fused_sums
from ferrum.kernels.reference.fused_sums import (
    add_pairs,
    add_pairs_in_float64,
    add_products,
    add_products_in_float64,
    fused,
    fused_in_float64,
    ordered_sum,
)
from ferrum.kernels.reference.reference_math import round_bf16
from native_twin import same_bits


def nearest(exact: Fraction) -> np.float32:
    """Return the float32 nearest to a rational, ties to even, by exact distances."""
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(around, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.int32)) & 1))


BOTH = (fused, fused_in_float64)
FLOATS = st.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False)


@given(FLOATS, FLOATS, FLOATS)
def test_fused_product_is_rounded_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    for compute in BOTH:
        assert compute(*(np.array([x], np.float32) for x in (a, b, c)))[0] == nearest(exact)


# Two float32 with a product slightly below or above 1. Float64 loses the difference next to a number 2^23 times larger.
BELOW, ABOVE = (1 + 2.0**-23, 1 - 2.0**-23), (1 + 2.0**-11, 1 - 2.0**-11 + 2.0**-22)


@given(
    st.integers(2**23, 2**24 - 2), st.integers(-60, 60), st.sampled_from((0.5, -0.5)), st.sampled_from((BELOW, ABOVE))
)
def test_fused_product_near_a_tie_is_rounded_once(unit, power, half, factors):
    """c is a whole number of units and a * b nearly half a unit: rounding to float64 first would give a tie."""
    scale = 2.0**power
    a, b, c = (np.array([x], np.float32) for x in (half * factors[0], factors[1] * scale, unit * scale))
    exact = Fraction(float(a[0])) * Fraction(float(b[0])) + Fraction(float(c[0]))
    for compute in BOTH:
        assert compute(a, b, c)[0] == nearest(exact)


@pytest.mark.parametrize("compute", BOTH)
def test_fused_product_propagates_nan_and_overflows_to_infinity(compute):
    x = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 0.0], np.float32)
    one = np.ones_like(x)
    expected = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1.0], np.float32)
    np.testing.assert_array_equal(compute(x, one, one), expected)
    np.testing.assert_array_equal(compute(x[3:5], one[3:5] * 2, one[3:5]), x[:2])


BITS = st.integers(0, 2**32 - 1)
AROUND_ZERO = st.builds(lambda sign, bits: sign << 31 | bits, st.integers(0, 1), st.integers(0, 70 << 23))
"""Numbers whose products are subnormal or underflow."""


@given(st.lists(st.tuples(*[BITS | AROUND_ZERO] * 3), min_size=1, max_size=40))
def test_library_fuses_any_bits_like_float64(numbers):
    """Among them subnormal numbers, infinities, NaN, and products and sums that overflow or underflow."""
    a, b, c = np.array(numbers, np.uint32).T.copy().view(np.float32)
    same_bits(fused(a, b, c), fused_in_float64(a, b, c))


SIZES = {"normal": (1.0, 1.0), "wide": (2.0**64, 1.0), "large": (2.0**62, 2.0**62), "small": (2.0**-62, 2.0**-63)}


def matrices(seed: int, rows: int, depth: int, columns: int, size: str) -> tuple[np.ndarray, ...]:
    """Return sums, inputs and weights with some zeros and numbers that are not finite."""
    rng = np.random.default_rng(seed)
    shapes = (rows, columns), (rows, depth), (depth, columns)
    total, x, w = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    for array, scale in zip((x, w), SIZES[size], strict=True):
        array *= np.float32(scale)
        array[rng.random(array.shape) < 0.1] = 0
    if seed % 4 == 0:
        x[rng.integers(rows), rng.integers(depth)] = rng.choice([np.nan, np.inf, -np.inf])
    return np.float32(SIZES[size][0]) * total * np.float32(SIZES[size][1]) * (seed % 2), x, w


SHAPES = (
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.integers(1, 70),
    st.integers(1, 40),
    st.sampled_from([*SIZES]),
)


@given(*SHAPES)
def test_library_adds_products_like_float64(seed, rows, depth, columns, size):
    total, x, w = matrices(seed, rows, depth, columns, size)
    expected = add_products_in_float64(total, x, w)
    same_bits(add_products(total, x, w), expected)


@given(*SHAPES)
def test_library_adds_pairs_like_float64(seed, rows, depth, columns, size):
    total, x, w = matrices(seed, rows, 2 * depth, columns, size)
    x, w = round_bf16(x), round_bf16(w)
    expected = add_pairs_in_float64(total, x, w)
    same_bits(add_pairs(total, x, w), expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_sums, "_is_plain", lambda x: False)
        same_bits(add_pairs_in_float64(total, x, w), expected)


@given(*SHAPES)
def test_sums_without_the_library_are_the_same(seed, rows, depth, columns, size):
    total, x, w = matrices(seed, rows, depth, columns, size)
    with_it = add_products(total, x, w), add_pairs(total, round_bf16(x), round_bf16(w))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_sums, "library", lambda: None)
        without = add_products(total, x, w), add_pairs(total, round_bf16(x), round_bf16(w))
    for ours, theirs in zip(with_it, without, strict=True):
        same_bits(ours, theirs)


LEAST = 2.0**-126


def pair(total: float, first: tuple[float, float], second: tuple[float, float] = (0, 0)) -> float:
    x, w = np.array([[first[0], second[0]]], np.float32), np.array([[first[1]], [second[1]]], np.float32)
    sums = [compute(np.full((1, 1), total, np.float32), x, w)[0, 0] for compute in (add_pairs, add_pairs_in_float64)]
    assert sums[0].tobytes() == sums[1].tobytes()
    return float(sums[0])


def test_second_term_of_a_pair_is_added_first():
    assert pair(1, (-(2.0**24), 1), (2.0**24, 1)) == 0
    assert pair(1, (2.0**24, 1), (-(2.0**24), 1)) == 1


# What VDPBF16PS gives on a processor that has it.
@pytest.mark.parametrize(
    ("total", "a", "b", "expected"),
    [
        (0, 2.0**-130, 1, 0),
        (2.0**-130, 0, 0, 0),
        (LEAST, -1.5 * 2.0**-76, 2.0**-51, 0),
        (2 * LEAST, -(2.0**-63), 2.0**-63, LEAST),
        (LEAST, -(2.0**-75), 2.0**-75, 0),  # IEEE rounds this to LEAST: a tie between subnormal numbers
        (LEAST, -(2.0**-75), 2.0**-76, LEAST),  # a tie with 24 bits
        (LEAST, -1.5 * 2.0**-76, 2.0**-75, 0),
        (-(2.0**127), 2.0**64, 2.0**64, 2.0**127),  # the product alone overflows
    ],
)
def test_subnormal_sums_of_pairs_are_zeros(total, a, b, expected):
    assert pair(total, (a, b)) == pair(total, (0, 0), (a, b)) == expected
    assert pair(-total, (-a, b)) == -expected


@given(st.integers(1, 70), st.lists(st.integers(1, 40), max_size=2), st.integers(0, 2**32 - 1))
def test_ordered_sum_equals_a_loop(n, shape, seed):
    terms = np.random.default_rng(seed).normal(size=(n, *shape)).astype(np.float32)
    expected = terms[0]
    for term in terms[1:]:
        expected = expected + term
    np.testing.assert_array_equal(ordered_sum(terms), expected)
