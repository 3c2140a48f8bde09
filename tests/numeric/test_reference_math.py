"""Elementary functions of the reference kernels: accuracy against float64, and bits independent of shapes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum.kernels.reference.reference_math import exp, exp2, fused, ordered_sum, product, round_bf16, silu, tree_sum


@pytest.mark.parametrize(("ours", "exact"), [(exp, np.exp), (exp2, np.exp2)])
def test_exponentials_are_within_two_units_in_the_last_place(ours, exact):
    x = np.random.default_rng(0).uniform(-80, 80, 200_000).astype(np.float32)
    expected = exact(x.astype(np.float64))
    assert np.max(np.abs(ours(x) - expected) / np.spacing(expected.astype(np.float32))) < 2


def test_exponentials_at_the_edges():
    edges = np.array([-np.inf, -1e30, -200, 0, 200, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(exp(edges), np.array([0, 0, 0, 1, np.inf, np.inf, np.nan], np.float32))
    assert exp2(np.array([-1e30], np.float32))[0] == 0


def test_silu_matches_its_definition():
    x = np.random.default_rng(1).normal(0, 4, 10_000).astype(np.float32)
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(silu(x), exact, rtol=1e-6, atol=1e-30)


@given(st.integers(1, 20), st.integers(1, 150), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_row_of_a_product_has_the_same_bits_alone_and_in_a_batch(rows, depth, outputs, seed):
    generator = np.random.default_rng(seed)
    x, w = (
        generator.normal(size=(rows, depth)).astype(np.float32),
        generator.normal(size=(outputs, depth)).astype(np.float32),
    )
    together = product(x, w)
    for row in range(rows):
        np.testing.assert_array_equal(product(x[row : row + 1], w)[0], together[row])
    np.testing.assert_allclose(together, x.astype(np.float64) @ w.T.astype(np.float64), rtol=1e-4, atol=1e-4)


def test_product_adds_its_terms_in_ascending_order():
    x = np.array([[1e8, 1.0, -1e8, 1.0]], np.float32)
    assert product(x, np.ones((1, 4), np.float32))[0, 0] == 1.0  # ((1e8 + 1) - 1e8) + 1: any other order gives 2 or 0


def nearest(exact: Fraction) -> np.float32:
    """Return the float32 nearest to a rational, ties to even, by exact distances."""
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(around, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.int32)) & 1))


FLOATS = st.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False)


@given(FLOATS, FLOATS, FLOATS)
def test_fused_product_is_rounded_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert fused(*(np.array([x], np.float32) for x in (a, b, c)))[0] == nearest(exact)


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
    assert fused(a, b, c)[0] == nearest(exact)


def test_fused_product_propagates_nan_and_overflows_to_infinity():
    x = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 0.0], np.float32)
    one = np.ones_like(x)
    np.testing.assert_array_equal(fused(x, one, one), np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1.0], np.float32))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(fused(x[3:5], one[3:5] * 2, one[3:5]), x[:2])


@given(st.integers(1, 70), st.lists(st.integers(1, 40), max_size=2), st.integers(0, 2**32 - 1))
def test_ordered_sum_equals_a_loop(n, shape, seed):
    terms = np.random.default_rng(seed).normal(size=(n, *shape)).astype(np.float32)
    expected = terms[0]
    for term in terms[1:]:
        expected = expected + term
    np.testing.assert_array_equal(ordered_sum(terms), expected)


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_tree_sum_depends_only_on_its_terms(n, seed):
    x = np.random.default_rng(seed).normal(size=(5, n)).astype(np.float32)
    for row in range(5):
        assert tree_sum(x[row]) == tree_sum(x)[row]
    np.testing.assert_allclose(tree_sum(x), x.astype(np.float64).sum(axis=1), rtol=1e-4, atol=1e-4)


def test_rounding_to_bf16_is_to_nearest_even():
    x = np.array([1.0, 1.00390625, 1.01171875, 1.0078125], np.float32)  # ties at 1 + 2^-8 and 1 + 3 x 2^-8
    np.testing.assert_array_equal(round_bf16(x), np.array([1.0, 1.0, 1.015625, 1.0078125], np.float32))
