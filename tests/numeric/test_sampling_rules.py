"""Every rule against `transformers` or its definition, the order of rules, ties and limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from ferrum.core.errors import StepError
from sampling_twin import F32, F64, probabilities, request, twin

V = 97


def random_logits(seed: int, size: int = V) -> F32:
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


def after(processors: list[Any], logits: F32, history: list[int]) -> F64:
    """Return the distribution of a chain of `transformers` processors."""
    scores = torch.from_numpy(logits.copy())[None]
    for processor in processors:
        scores = processor(torch.tensor([history]), scores)
    return torch.softmax(scores[0].double(), -1).numpy()


HISTORY = [5, 9, 9, 31, 4, 31, 9, 60, 7]
CASES: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("temperature", {"temperature": 0.7}, [hf.TemperatureLogitsWarper(0.7)]),
    ("hot", {"temperature": 1.9}, [hf.TemperatureLogitsWarper(1.9)]),
    ("top_k", {"top_k": 5}, [hf.TopKLogitsWarper(5)]),
    ("top_k of one", {"top_k": 1}, [hf.TopKLogitsWarper(1)]),
    ("top_k above V", {"top_k": V + 3}, []),
    ("top_k off", {"top_k": -1}, []),
    ("top_p", {"top_p": 0.8}, [hf.TopPLogitsWarper(0.8)]),
    ("narrow top_p", {"top_p": 0.01}, [hf.TopPLogitsWarper(0.01)]),
    ("min_p", {"min_p": 0.05}, [hf.MinPLogitsWarper(0.05)]),
    ("repetition", {"repetition_penalty": 1.3}, [hf.RepetitionPenaltyLogitsProcessor(1.3)]),
    ("repetition wanted", {"repetition_penalty": 0.8}, [hf.RepetitionPenaltyLogitsProcessor(0.8)]),
    (
        "bias",
        {"logit_bias": {3: 2.5, 60: -4.0}},
        [hf.SequenceBiasLogitsProcessor([[[3], 2.5], [[60], -4.0]])],
    ),
    (
        "allowed",
        {"allowed_token_ids": [1, 9, 60]},
        [hf.SuppressTokensLogitsProcessor([token for token in range(V) if token not in (1, 9, 60)])],
    ),
    (
        "bad words",
        {"bad_words": [[12], [60, 7, 13], [7, 14], [8, 15], [7]]},
        [hf.NoBadWordsLogitsProcessor([[12], [60, 7, 13], [7, 14], [8, 15], [7]])],
    ),
    (
        "min_tokens not reached",
        {"min_tokens": 7, "eos": [1, 2]},
        [hf.MinNewTokensLengthLogitsProcessor(3, 7, [1, 2])],
    ),
    (
        "min_tokens reached",
        {"min_tokens": 6, "eos": [1, 2]},
        [hf.MinNewTokensLengthLogitsProcessor(3, 6, [1, 2])],
    ),
    (
        "chain",
        {"repetition_penalty": 1.2, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        [
            hf.RepetitionPenaltyLogitsProcessor(1.2),
            hf.TemperatureLogitsWarper(0.6),
            hf.TopKLogitsWarper(20),
            hf.TopPLogitsWarper(0.9),
            hf.MinPLogitsWarper(0.02),
        ],
    ),
]


@pytest.mark.contract("0.SamplingParams")
@pytest.mark.contract("5.parameters are applied")
@pytest.mark.parametrize(("params", "processors"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_rules_match_transformers(params: dict[str, Any], processors: list[Any]) -> None:
    for seed in range(5):
        logits = random_logits(seed)
        got = probabilities(logits, request(HISTORY, prompt=3, **params))
        want = after(processors, logits, HISTORY)
        assert np.array_equal(got > 0, want > 0)
        np.testing.assert_allclose(got, want, rtol=2e-5)


def test_stop_token_ids_are_forbidden_before_min_tokens_too() -> None:
    logits = random_logits(0)
    for generated, open_again in ((1, False), (2, True)):
        sampling = request(range(4 + generated), prompt=4, min_tokens=2, stop_token_ids=[8], eos=[3])
        assert (probabilities(logits, sampling)[[3, 8]] > 0).all() == open_again


def test_presence_and_frequency_penalties_follow_the_openai_formula() -> None:
    """Formula: mu[j] - c[j] * frequency - (c[j] > 0) * presence, where c counts generated tokens."""
    logits = random_logits(1)
    counts = np.zeros(V)
    for token in HISTORY[3:]:
        counts[token] += 1
    want = logits.astype(np.float64) - 0.7 * counts - 1.5 * (counts > 0)
    got = probabilities(logits, request(HISTORY, prompt=3, frequency_penalty=0.7, presence_penalty=1.5))
    np.testing.assert_allclose(got, np.exp(want) / np.exp(want).sum(), rtol=2e-5)


def test_grammar_mask_is_little_endian_and_forbids_ids_past_its_end() -> None:
    mask = bytes([0b00000101, 0b10000000])
    got = probabilities(random_logits(2), request(), mask)
    assert np.flatnonzero(got).tolist() == [0, 2, 15]
    assert (probabilities(random_logits(2), request()) > 0).all()


@pytest.mark.parametrize("seed", range(60))
def test_all_rules_together_match_the_float64_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    history = [*rng.integers(0, V, 20).tolist(), *rng.integers(0, V, 5).tolist() * 2]
    sampling = request(
        history,
        prompt=int(rng.integers(1, 30)),
        temperature=float(rng.uniform(0.2, 1.8)),
        top_k=int(rng.choice([0, 1, 7, 40])),
        top_p=float(rng.choice([1.0, 0.95, 0.6])),
        min_p=float(rng.choice([0.0, 0.03, 0.3])),
        repetition_penalty=float(rng.uniform(0.7, 1.6)),
        presence_penalty=float(rng.uniform(-2, 2)),
        frequency_penalty=float(rng.uniform(-2, 2)),
        logit_bias={int(token): float(rng.uniform(-20, 20)) for token in rng.integers(0, V, 5)},
        allowed_token_ids=None if seed % 3 else rng.choice(V, 50, replace=False).tolist(),
        bad_words=[[1], [*history[-2:], 2], [int(rng.integers(V)), 3]],
        no_repeat_ngram_size=int(rng.choice([0, 1, 2, 4])),
        dry_multiplier=float(rng.choice([0.0, 0.8, 4.0])),
        dry_allowed_length=int(rng.integers(1, 4)),
        dry_base=float(rng.uniform(1, 3)),
        min_tokens=10,
        eos=[4],
        stop_token_ids=[5],
    )
    logits = random_logits(1000 + seed)
    got, want = probabilities(logits, sampling), twin(logits, sampling)
    assert np.array_equal(got > 0, want > 0)
    np.testing.assert_allclose(got, want, rtol=1e-4)


LOG_TABLE = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)


@pytest.mark.contract("5.temperature comes before top-p")
@pytest.mark.parametrize(
    ("why", "params", "kept"),
    [
        ("masks come before top-k", {"bad_words": [[0]], "top_k": 1}, [1]),
        ("bias comes before top-k", {"logit_bias": {3: 5.0}, "top_k": 1}, [3]),
        # After top-k the two tokens have 4/7 and 3/7, so the first reaches 0.5; the raw 0.4 does not.
        ("top-k comes before top-p, which sees the renormalised rest", {"top_k": 2, "top_p": 0.5}, [0]),
        # At temperature 0.25 the masses are 256, 81, 16, 1 of 354: two reach 0.9; at temperature 1 three would.
        ("temperature comes before top-p", {"temperature": 0.25, "top_p": 0.9}, [0, 1]),
        # Token 2 has a quarter of the probability of the first at temperature 0.5, and half at temperature 1.
        ("temperature comes before min-p", {"temperature": 0.5, "min_p": 0.4}, [0, 1]),
    ],
)
def test_the_order_of_rules(why: str, params: dict[str, Any], kept: list[int]) -> None:
    assert np.flatnonzero(probabilities(LOG_TABLE, request(**params))).tolist() == kept


def test_bias_is_added_before_the_repetition_penalty() -> None:
    got = probabilities(np.array([1, 0], np.float32), request([0], logit_bias={0: 3.0}, repetition_penalty=2.0))
    assert np.log(got[0] / got[1]) == pytest.approx((1 + 3) / 2, abs=1e-5)


def test_repetition_penalty_is_applied_before_presence_and_frequency() -> None:
    logits = np.array([4, 0], np.float32)
    got = probabilities(
        logits, request([1, 0], prompt=1, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    )
    assert np.log(got[0] / got[1]) == pytest.approx(4 / 2 - 0.5 - 0.25, abs=1e-5)


def test_a_repeated_ngram_stays_forbidden_whatever_is_added() -> None:
    got = probabilities(np.zeros(3, np.float32), request([1, 0], logit_bias={1: 100.0}, no_repeat_ngram_size=1))
    assert np.flatnonzero(got).tolist() == [2]


def test_dry_is_subtracted_after_the_repetition_penalty_and_before_top_k() -> None:
    logits = np.array([8, 1, 0], np.float32)
    params = {"repetition_penalty": 2.0, "dry_multiplier": 3.5, "dry_allowed_length": 1}
    got = probabilities(logits, request([0, 0], **params))
    assert np.log(got[0] / got[1]) == pytest.approx(8 / 2 - 3.5 - 1, abs=1e-5)
    assert np.flatnonzero(probabilities(logits, request([0, 0], top_k=1, **params))).tolist() == [1]


def test_penalties_are_applied_before_temperature() -> None:
    got = probabilities(np.array([2, 0], np.float32), request([1, 0], prompt=1, presence_penalty=1.0, temperature=0.5))
    assert np.log(got[0] / got[1]) == pytest.approx((2 - 1) / 0.5, abs=1e-5)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_top_k_keeps_exactly_k_and_the_lowest_ids_of_a_tie(k: int) -> None:
    logits = np.array([1, 5, 3, 3, 3, 0], np.float32)
    assert np.flatnonzero(probabilities(logits, request(top_k=k))).tolist() == [1, 2, 3][:k]


@pytest.mark.parametrize(("p", "kept"), [(0.25, 1), (0.2500001, 2), (0.5, 2), (0.51, 3), (0.99, 4)])
def test_top_p_keeps_the_token_that_crosses_and_the_lowest_ids_of_a_tie(p: float, kept: int) -> None:
    logits = np.full(4, 1.5, np.float32)  # four masses of exactly one quarter
    assert np.flatnonzero(probabilities(logits, request(top_p=p))).tolist() == list(range(kept))


def test_top_p_finds_a_set_larger_than_the_first_pieces() -> None:
    flat = np.zeros(20_000, np.float32)
    assert np.count_nonzero(probabilities(flat, request(top_p=0.5))) == 10_000


def test_min_p_of_one_keeps_the_most_likely_tokens() -> None:
    logits = np.array([0, 2, 1.999, 2], np.float32)
    assert np.flatnonzero(probabilities(logits, request(min_p=1.0))).tolist() == [1, 3]


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    logits = random_logits(4)
    sampling = request(min_tokens=3, eos=[V, 2], bad_words=[[V + 5], [3]])
    assert np.flatnonzero(probabilities(logits, sampling) == 0).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("params", "mask"),
    [
        ({"allowed_token_ids": [3], "bad_words": [[3]]}, None),
        ({"allowed_token_ids": [2], "eos": [2], "min_tokens": 1}, None),
        ({}, bytes(13)),
    ],
)
def test_row_without_an_allowed_token_raises_a_typed_error(params: dict[str, Any], mask: bytes | None) -> None:
    with pytest.raises(StepError, match="position 1"):
        probabilities(random_logits(5), request(**params), mask)


def test_the_most_negative_logits_do_not_overflow() -> None:
    logits = np.full(8, np.finfo(np.float32).min, np.float32)
    logits[3] = 10.0
    got = probabilities(logits, request([0, 3], temperature=0.1, repetition_penalty=1.5, top_p=0.9))
    assert np.flatnonzero(got).tolist() == [3]
