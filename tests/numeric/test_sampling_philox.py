"""The generator, its uniform variates, the logarithm and the probability mass, against external facts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum.core.errors import NonFiniteLogits
from ferrum.kernels.reference.reference_math import log
from ferrum.sampling.philox import philox4x32, uniform
from ferrum.sampling.probabilities import MASS_ONE, exp, greatest, log_total, mass

# From the known-answer file of Random123 (Salmon et al.), philox4x32 with 10 rounds: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_published_answers(counter: str, key: str, result: str) -> None:
    low, high = words(key)
    got = philox4x32(np.array(words(counter), np.uint32).reshape(4, 1), (low, high))
    assert got[:, 0].tolist() == words(result)


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_counter_of_a_variate_has_token_position_choice_and_stream(counter: str, key: str, result: str) -> None:
    block, position, choice, stream = words(counter)
    low, high = words(key)
    tokens = 4 * block + np.arange(4, dtype=np.int64)
    got = uniform(tokens, seed=high << 32 | low, position=position, choice=choice, stream=stream)
    assert got.dtype == np.float32
    assert [float(u) for u in got] == [((word >> 9) + 0.5) / 2**23 for word in words(result)]


def test_negative_seed_is_used_as_its_twos_complement() -> None:
    tokens = np.arange(9, dtype=np.int64)
    a = uniform(tokens, seed=-5, position=1, choice=0)
    assert np.array_equal(a, uniform(tokens, seed=2**64 - 5, position=1, choice=0))
    assert not np.array_equal(a, uniform(tokens, seed=2**32 - 5, position=1, choice=0))


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(0, 2**63), st.integers(0, 2**20), st.integers(0, 127))
def test_variate_does_not_depend_on_other_tokens(ids: set[int], seed: int, position: int, choice: int) -> None:
    tokens = np.array(sorted(ids), np.int64)
    everything = uniform(np.arange(301), seed=seed, position=position, choice=choice)
    assert np.array_equal(uniform(tokens, seed=seed, position=position, choice=choice), everything[tokens])


def test_variates_are_uniform() -> None:
    u = uniform(np.arange(100_000), seed=11, position=5, choice=0)
    assert u.min() > 0 and u.max() < 1
    counts = np.histogram(u, bins=50, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 97.0  # chi-squared, 49 degrees of freedom, p = 5e-5


def test_log_of_every_variate_is_within_one_unit_in_the_last_place() -> None:
    u = (np.arange(2**23, dtype=np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    exact = np.log(u.astype(np.float64))
    assert (np.abs(log(u) - exact) / np.spacing(np.abs(exact).astype(np.float32))).max() < 0.9


def test_log_is_accurate_over_the_normal_numbers() -> None:
    bits = np.arange(0x00800000, 0x7F800000, 997, dtype=np.int32)
    x = bits.view(np.float32)
    exact = np.log(x.astype(np.float64))
    assert (np.abs(log(x) - exact) / np.spacing(np.abs(exact).astype(np.float32)))[exact != 0].max() < 0.9
    assert log(np.ones(1, np.float32))[0] == 0


def test_log_bits_do_not_depend_on_shape_or_stride() -> None:
    x = np.random.default_rng(0).uniform(1e-6, 1e6, 1001).astype(np.float32)
    whole = log(x)
    assert np.array_equal([log(x[k : k + 1])[0] for k in range(x.size)], whole)
    assert np.array_equal(log(x[::-3]), whole[::-3])


@pytest.mark.parametrize("size", [1, 2, 1000, 151_936])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_log_total_is_the_log_of_the_softmax_normaliser(size: int, scale: float) -> None:
    logits = np.random.default_rng(size).normal(0, scale, size).astype(np.float32)
    below = logits - logits.max()
    assert abs(log_total(mass(below)) - np.log(np.exp(below.astype(np.float64)).sum())) < 1e-6


def test_sum_of_masses_does_not_depend_on_order() -> None:
    rng = np.random.default_rng(3)
    masses = mass(-rng.exponential(5, 50_000).astype(np.float32))
    total = masses.sum()
    assert all(rng.permutation(masses).cumsum()[-1] == total for _ in range(5))


def test_most_likely_token_has_mass_one_and_forbidden_token_none() -> None:
    assert mass(np.array([0, -np.inf, -100], np.float32)).tolist() == [MASS_ONE, 0, 0]


@pytest.mark.parametrize("bad", [[1, np.nan], [np.inf, 0], [-np.inf, -np.inf]])
def test_non_finite_logits_are_an_error(bad: list[float]) -> None:
    with pytest.raises(NonFiniteLogits):
        greatest(np.array(bad, np.float32))


def test_minus_infinity_forbids_a_token() -> None:
    assert greatest(np.array([-np.inf, 2], np.float32)) == 2


def test_exponential_of_sampling_is_accurate_and_reaches_zero_and_infinity() -> None:
    x = np.random.default_rng(0).uniform(-80, 80, 200_000).astype(np.float32)
    expected = np.exp(x.astype(np.float64))
    assert np.max(np.abs(exp(x) - expected) / np.spacing(expected.astype(np.float32))) < 2
    edges = np.array([-np.inf, -1e30, -200, 0, 200, np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(exp(edges), np.array([0, 0, 0, 1, np.inf, np.inf, np.nan], np.float32))
