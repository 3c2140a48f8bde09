"""Elementary functions and sums of the reference kernels: accuracy, order, and bits independent of shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum.kernels.op_attributes import SILU
from ferrum.kernels.reference.reference_math import (
    exp,
    exp2,
    input_bf16,
    lanes_sum,
    product,
    round_bf16,
    squares_sum,
    tree_sum,
)
from ferrum.kernels.reference.reference_rows import activated


@pytest.mark.parametrize(("ours", "exact"), [(exp, np.exp), (exp2, np.exp2)])
def test_exponentials_are_within_two_units_in_the_last_place(ours, exact):
    x = np.random.default_rng(0).uniform(-80, 80, 200_000).astype(np.float32)
    expected = exact(x.astype(np.float64))
    assert np.max(np.abs(ours(x) - expected) / np.spacing(expected.astype(np.float32))) < 2


@pytest.mark.parametrize(("ours", "low", "high"), [(exp, -88, 88.3), (exp2, -127, 127.4)])
def test_exponentials_reach_zero_and_stay_finite(ours, low, high):
    edges = np.array([-np.inf, -1e30, low, 0, high, 1e30, np.inf, np.nan], np.float32)
    zero, less, least, one, most, more, infinite, nan = ours(edges)
    assert (zero, less, least, one) == (0, 0, 0, 1)
    assert np.isnan(nan)
    assert 1.9e38 < most == more == infinite


def test_silu_matches_its_definition():
    x = np.random.default_rng(1).normal(0, 4, 10_000).astype(np.float32)
    exact = x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(activated(x, SILU), exact, rtol=1e-6, atol=1e-30)


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


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_tree_sum_depends_only_on_its_terms(n, seed):
    x = np.random.default_rng(seed).normal(size=(5, n)).astype(np.float32)
    for row in range(5):
        assert tree_sum(x[row]) == tree_sum(x)[row]
    np.testing.assert_allclose(tree_sum(x), x.astype(np.float64).sum(axis=1), rtol=1e-4, atol=1e-4)


def test_rounding_to_bf16_is_to_nearest_even():
    x = np.array([1.0, 1.00390625, 1.01171875, 1.0078125], np.float32)  # ties at 1 + 2^-8 and 1 + 3 x 2^-8
    np.testing.assert_array_equal(round_bf16(x), np.array([1.0, 1.0, 1.015625, 1.0078125], np.float32))


def test_subnormal_inputs_of_a_bf16_product_are_zeros():
    x = np.array([2.0**-126, 2.0**-126 - 2.0**-149, -(2.0**-130), np.nan], np.float32)
    np.testing.assert_array_equal(input_bf16(x), np.array([2.0**-126, 0, -0.0, np.nan], np.float32))
    assert round_bf16(x)[1] == 2.0**-126


def test_squares_are_added_to_64_accumulators_and_folded():
    """Each number is lost next to 2^24 unless the order keeps it apart until numbers of its size have joined it."""
    x = np.zeros((1, 192), np.float32)
    x[0, [0, 64, 128]] = 4096, 1, 1  # one accumulator: 2^24 + 1 + 1 is 2^24
    assert squares_sum(x)[0] == 2.0**24
    x[0, 128], x[0, 16] = 0, 1  # (v0 + v1) + (v2 + v3): v0 has lost its 1, so has the sum with v1
    assert squares_sum(x)[0] == 2.0**24
    x[0, [64, 16]], x[0, [32, 48]] = 0, 1  # v2 + v3 is 2
    assert squares_sum(x)[0] == 2.0**24 + 2


def test_lanes_are_added_in_ascending_order_and_folded():
    x = np.zeros((1, 64), np.float32)
    x[0, [0, 16, 32]] = 2.0**24, 1, 1
    assert lanes_sum(x)[0] == 2.0**24
    x[0, 32], x[0, 8] = 0, 1  # lane 8 is folded onto lane 0, which has lost its 1
    assert lanes_sum(x)[0] == 2.0**24
    x[0, 16], x[0, 1], x[0, 8], x[0, 9] = 0, 1, 0, 1  # lanes 1 and 9 join first
    assert lanes_sum(x)[0] == 2.0**24 + 2


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_row_sums_do_not_depend_on_other_rows(n, seed):
    x = np.random.default_rng(seed).normal(size=(5, n)).astype(np.float32)
    for row in range(5):
        assert squares_sum(x[row]) == squares_sum(x)[row]
        assert lanes_sum(x[row]) == lanes_sum(x)[row]
    np.testing.assert_allclose(squares_sum(x), (x.astype(np.float64) ** 2).sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(lanes_sum(x), x.astype(np.float64).sum(axis=1), rtol=1e-4, atol=1e-4)
