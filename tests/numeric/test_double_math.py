"""Elementary functions in float64: accuracy against decimal and extended precision, edges, refusals."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum.kernels.reference.double_math import cosine_and_sine, logarithm, power

POSITIVE = st.floats(1e-300, 1e300)


def units_off(ours: float, exact: Decimal) -> Decimal:
    """Return the error in units in the last place."""
    return abs(Decimal(ours) - exact) / Decimal(math.ulp(ours))


@given(POSITIVE | st.floats(0.5, 2))
def test_logarithm_is_within_one_unit_in_the_last_place(x):
    with localcontext() as context:
        context.prec = 60
        assert units_off(logarithm(x), Decimal(x).ln()) < 1 if x != 1 else logarithm(x) == 0


@given(st.floats(1, 1e30) | st.floats(1e-30, 1), st.floats(-2, 2))
def test_power_is_within_two_units_in_the_last_place(x, y):
    with localcontext() as context:
        context.prec = 60
        assert units_off(power(x, y), (Decimal(y) * Decimal(x).ln()).exp()) < 2


@pytest.mark.parametrize("theta", [1e4, 1e6, 5e5, 150000.0])
def test_frequencies_round_to_the_nearest_float32(theta):
    with localcontext() as context:
        context.prec = 60
        for i in range(128):
            exact = (Decimal(-2 * i / 256) * Decimal(theta).ln()).exp()
            assert np.float32(power(theta, -(2 * i / 256))) == np.float32(float(exact))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_logarithms_of_other_numbers_are_refused(wrong):
    for compute in (logarithm, lambda x: power(x, 0.5)):
        with pytest.raises(ValueError, match="logarithm"):
            compute(wrong)


def test_power_out_of_range_is_refused_or_zero():
    with pytest.raises(OverflowError):
        power(1e300, 2.0)
    assert power(1e300, -2.0) == 0


def test_cosine_and_sine_round_to_the_nearest_float32():
    rng = np.random.default_rng(0)
    angles = np.concatenate((rng.uniform(0, 2**24, 100_000), rng.uniform(0, 100, 100_000), np.arange(10_000)))
    angles = angles.astype(np.float32).astype(np.float64)
    exact = np.cos(angles.astype(np.longdouble)), np.sin(angles.astype(np.longdouble))
    for ours, theirs in zip(cosine_and_sine(angles), exact, strict=True):
        assert np.abs(ours - theirs).max() < 4e-16
        assert (ours.astype(np.float32) != theirs.astype(np.float32)).sum() <= 2


def test_angles_beyond_two_to_the_24th_count_modulo_it():
    angles = np.array([2.0**24, 2.0**24 + 2, 2.0**100])
    for ours, expected in zip(cosine_and_sine(angles), cosine_and_sine(np.array([0.0, 2.0, 0.0])), strict=True):
        np.testing.assert_array_equal(ours, expected)
