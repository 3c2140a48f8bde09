"""The native sampler gives the results of numpy for any logits, rules and tier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrum.core.errors import NonFiniteLogits, StepError
from ferrum.core.params import ALL_TOKENS
from ferrum.core.step import Score
from ferrum.sampling.rows import Row
from ferrum.sampling.sampler import REFERENCE, LogprobsQuery, SamplerInput, score
from native_twin import TEAMS, TIERS, sampler_of
from sampling_twin import best_of, request, sample

SIZES = (1, 2, 5, 16, 63, 64, 65, 1000, 4099)


def logits_of(seed: int, size: int) -> np.ndarray:
    """Return rows that are flat, peaked, full of ties, or with forbidden tokens."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(size) * rng.choice([0.01, 1, 5, 30])).astype(np.float32)
    if rng.random() < 0.5:
        x = np.round(x * 2) / 2
    if rng.random() < 0.3:
        x[rng.random(size) < 0.3] = -np.inf
        x[rng.integers(size)] = 0.5
    return x


rules = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.01, 0.3, 0.8, 1.0, 2.0]),
        "top_k": st.sampled_from([1, 2, 7, 50, 999, 4000]),
        "top_p": st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.95, 0.9999]),
        "min_p": st.sampled_from([1e-6, 0.02, 0.3, 1.0]),
    },
)


@pytest.mark.parametrize("tier", TIERS)
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from(SIZES), params=rules, key=st.integers(-(2**63), 2**63 - 1))
def test_draws_equal_numpy(tier, seed, size, params, key):
    sampler, logits = sampler_of(tier, 2), logits_of(seed, size)
    for position in range(1, 4):
        wish = request([0] * position, seed=key, choice=seed % 3, **params)
        assert sample(logits, wish, (), sampler) == sample(logits, wish, (), REFERENCE)


@pytest.mark.parametrize("tier", TIERS)
def test_draws_over_a_large_vocabulary_equal_numpy(tier):
    sampler = sampler_of(tier, 2)
    for seed in range(3):
        logits = (np.random.default_rng(seed).standard_normal(151_936) * 3).astype(np.float32)
        for params in ({}, {"temperature": 0.7, "top_p": 0.95}, {"top_k": 20}, {"min_p": 0.05}, {"temperature": 0.0}):
            wish = request([1, 2, 3], seed=seed, logprobs=5, **params)
            assert sample(logits, wish, (), sampler) == sample(logits, wish, (), REFERENCE)


@pytest.mark.parametrize("tier", TIERS)
def test_unlikely_token_wins_with_large_noise(tier):
    """Tests all distances from the most likely token, up to more than the greatest noise."""
    sampler, drawn = sampler_of(tier, 2), set()
    for distance in range(20):
        logits = np.full(20_000, -distance, np.float32)
        logits[777] = 0.0
        for seed in range(8):
            wish = request([0] * (1 + distance), seed=seed)
            found = sample(logits, wish, (), sampler)
            assert found == sample(logits, wish, (), REFERENCE)
            drawn.add((distance, found.token == 777))
    assert {(8, False), (19, True)} <= drawn, "both kinds were there"


@pytest.mark.parametrize("tier", TIERS)
def test_logits_that_temperature_makes_equal_are_ordered_by_id(tier):
    """Logits differ by a few units in the last place, so that division changes their order."""
    sampler, rng = sampler_of(tier, 2), np.random.default_rng(4)
    for size in (50, 300, 5000):
        steps = rng.integers(0, 6, size)
        logits = np.where(steps > 4, np.float32(9), (np.float32(-3) + steps * np.float32(2**-22)).astype(np.float32))
        for temperature in (0.3, 0.9, 2.0):
            for top_k in (size // 6, size // 4, size // 2):
                wish = request([0], seed=size + top_k, temperature=temperature, top_k=top_k, min_p=1e-9)
                drawn = {sample(logits, replace(wish, choice=choice), (), sampler).token for choice in range(8)}
                assert drawn == {sample(logits, replace(wish, choice=choice)).token for choice in range(8)}


@pytest.mark.parametrize("tier", TIERS)
def test_top_counts_above_the_vocabulary_take_all_tokens(tier):
    sampler, logits = sampler_of(tier, 2), logits_of(3, 100)
    whole = sample(logits, request([0], seed=1, logprobs=ALL_TOKENS), (), sampler)
    for many in (100, 101, 2**31, 2**64, 10**21):
        wish = request([0], seed=1, top_k=many, logprobs=many)
        assert sample(logits, wish, (), sampler) == sample(logits, wish, (), REFERENCE) == whole


@pytest.mark.parametrize("tier", TIERS)
def test_rules_over_the_vocabulary_run_first(tier):
    sampler, logits = sampler_of(tier, 2), logits_of(3, 100)
    for params in (
        {"allowed_token_ids": [4, 77]},
        {"logit_bias": {5: 3.5}, "temperature": 0.0},
        {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    ):
        wish = request([0, 5, 6, 6, 7], **params)
        kept = logits.copy()
        assert sample(logits, wish, (), sampler) == sample(logits, wish, (), REFERENCE)
        np.testing.assert_array_equal(logits, kept)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("count", [0, 1, 5, ALL_TOKENS])
def test_log_probabilities_equal_numpy(tier, count):
    sampler = sampler_of(tier, 2)
    for size in SIZES:
        logits = np.stack([logits_of(seed, size) for seed in range(12)])
        places = (np.argmax, np.argmin, lambda row: row.size // 2)
        wish = Score(tuple(int(places[seed % 3](row)) for seed, row in enumerate(logits)), count)
        assert score(logits, wish, sampler) == score(logits, wish, REFERENCE)


@pytest.mark.parametrize("tier", TIERS)
def test_rows_that_cannot_be_sampled_raise_the_errors_of_numpy(tier):
    sampler = sampler_of(tier, 2)
    for bad in (np.nan, np.inf):
        logits = logits_of(1, 70)
        logits[69] = bad
        with pytest.raises(NonFiniteLogits):
            sampler.logprobs([LogprobsQuery(logits, 3, 1)])
    for temperature in (0.0, 1.0):
        nothing = request(allowed_token_ids=[3], bad_words=[(3,)], temperature=temperature)
        with pytest.raises(StepError, match="position 1"):
            sample(np.zeros(8, np.float32), nothing, (), sampler)


@pytest.mark.parametrize("team", TEAMS)
def test_rows_of_a_batch_equal_rows_alone(team):
    """The batch mixes sizes, rules and requests, and one row without an allowed token."""
    sampler, choices, questions = sampler_of(*team), [], []
    for seed in range(40):
        logits = logits_of(seed, SIZES[seed % len(SIZES)])
        rules = [{"temperature": 0.0}, {"temperature": 0.0, "logit_bias": {0: 4.5}}, {}, {"top_k": 3}, {"top_p": 0.8}][
            seed % 5
        ]
        wish = request([0] * (1 + seed), seed=seed, **({} if seed == 17 else rules))
        choices.append(SamplerInput(logits, best_of(logits), Row(wish, mask=bytes(600) if seed == 17 else None)))
        questions.append(LogprobsQuery(logits, seed % logits.size, seed % 7))
    together, expected = sampler.choose(choices), REFERENCE.choose(choices)
    assert [str(each) for each in together] == [str(each) for each in expected]
    assert isinstance(together[17], StepError)
    assert sampler.logprobs(questions) == REFERENCE.logprobs(questions)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}, {"temperature": 0.0}])
def test_penalty_keeps_logits_finite(tier, params):
    logits = np.full(200, 1e37, np.float32)
    logits[70:] = -1e37
    wish = request(list(range(100)), prompt=1, seed=5, repetition_penalty=0.01, **params)
    token = sample(logits, wish, (), sampler_of(tier, 2)).token
    assert token == sample(logits, wish, (), REFERENCE).token and token < 70


@pytest.mark.parametrize("tier", TIERS)
def test_smallest_temperature_is_greedy(tier):
    for seed in range(20):
        logits = np.round(np.random.default_rng(seed).standard_normal(200) * 2).astype(np.float32) / 2
        wish = request([1, 3], prompt=1, seed=seed, temperature=9e-6, logit_bias={5: -1.0})
        assert sample(logits, wish, (), sampler_of(tier, 2)) == sample(logits, wish, (), REFERENCE)
