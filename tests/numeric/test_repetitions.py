"""Rules about repeated sequences: `no_repeat_ngram_size` against transformers, DRY against its definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from ferrum.core.errors import StepError
from ferrum.core.step import Sampling
from ferrum.sampling.repetitions import dry_penalties, suffix_matches
from ferrum.sampling.rows import Row
from ferrum.sampling.rules import edited
from sampling_twin import F32, common_suffix, probabilities, request

V = 9
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=24)
BREAKERS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=3)
DRY = st.fixed_dictionaries(
    {"dry_multiplier": st.sampled_from([0.8, 3.0])},
    optional={
        "dry_base": st.sampled_from([1.0, 1.75]),
        "dry_allowed_length": st.integers(1, 4),
        "dry_penalty_last_n": st.integers(-1, 12),
    },
)
LOGITS: F32 = np.linspace(-3, 3, V).astype(np.float32)


def limit_of(window: list[int], breakers: list[list[int]]) -> int:
    """Return how long a repetition may be: up to the last token that begins a breaker, and the longest there."""
    for start in reversed(range(len(window))):
        lengths = [len(each) for each in breakers if window[start : start + len(each)] == each]
        if lengths:
            return len(window) - start - max(lengths)
    return len(window)


def dry_by_definition(sampling: Sampling) -> dict[int, int]:
    """Return the length of the repetition that each penalised token would continue."""
    params, history = sampling.params, list(sampling.history)
    count = params.dry_penalty_last_n
    window = history if count < 0 else history[len(history) - min(count, len(history)) :]
    breakers = [list(each) for each in sampling.dry_sequence_breakers]
    found: dict[int, int] = {}
    for place, token in enumerate(window):
        length = min(common_suffix(window[:place], window), limit_of(window, breakers))
        if length >= params.dry_allowed_length and [token] not in breakers:
            found[token] = max(length, found.get(token, 0))
    return found


@given(TOKENS)
@example([2] * 12)
@example([1, 2, 3] * 5)
def test_matches_are_the_common_suffixes_of_the_tokens_before_and_all(tokens: list[int]) -> None:
    assert suffix_matches(tokens) == [common_suffix(tokens[:place], tokens) for place in range(len(tokens))]


def test_the_time_of_matches_grows_with_the_tokens_not_with_the_repetitions() -> None:
    compared = 0

    class Token(int):
        def __eq__(self, other: Any) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == int(other)

        __hash__ = int.__hash__

    for period in (1, 2, 7, 500):
        compared = 0
        suffix_matches([Token(place % period) for place in range(1000)])
        assert compared <= 2000


@given(TOKENS, st.integers(1, 5))
def test_ngrams_that_transformers_forbids_are_forbidden(tokens: list[int], size: int) -> None:
    scores = torch.from_numpy(LOGITS.copy())[None]
    want = hf.NoRepeatNGramLogitsProcessor(size)(torch.tensor([tokens]), scores)[0].numpy()
    np.testing.assert_array_equal(edited(LOGITS, Row(request(tokens, no_repeat_ngram_size=size))), want)


@given(TOKENS, DRY, BREAKERS)
@example([0, 1, 2, 0, 1], {"dry_multiplier": 1.0}, [[1]])
@example([3, 0, 1, 2, 3, 0, 1], {"dry_multiplier": 1.0}, [[3, 0], [0]])
def test_dry_subtracts_the_power_of_the_longest_repetition(
    tokens: list[int], params: dict[str, Any], breakers: list[list[int]]
) -> None:
    sampling = replace(request(tokens, **params), dry_sequence_breakers=tuple(map(tuple, breakers)))
    want = LOGITS.astype(np.float64)
    p = sampling.params
    for token, length in dry_by_definition(sampling).items():
        want[token] -= p.dry_multiplier * p.dry_base ** (length - p.dry_allowed_length)
    got = edited(LOGITS, Row(sampling))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got == LOGITS, want.astype(np.float32) == LOGITS)


def test_powers_are_products_in_single_precision() -> None:
    power, want = np.float32(1.0), []
    for _ in range(200):
        want.append(np.float32(0.8) * power)
        power = min(power * np.float32(1.75), np.float32(2.0**126))
    np.testing.assert_array_equal(dry_penalties(0.8, 1.75, np.arange(200)), np.minimum(want, np.float32(2.0**126)))


@pytest.mark.parametrize("multiplier", [100.0, 1e-60])
def test_dry_forbids_no_token_however_long_the_repetition(multiplier: float) -> None:
    logits = np.array([30.0, -30.0], np.float32)
    got = edited(logits, Row(request([0] * 3000, dry_multiplier=multiplier, dry_base=100.0)))
    assert np.isfinite(got).all()


def test_a_row_whose_tokens_all_repeat_raises_a_typed_error() -> None:
    with pytest.raises(StepError, match="position 2"):
        probabilities(np.zeros(2, np.float32), request([0, 1], no_repeat_ngram_size=1))
