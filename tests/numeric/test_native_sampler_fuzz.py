"""Random rows, vocabularies and rules: the native sampler gives the tokens, numbers and errors of numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum.core.errors import StepError
from ferrum.core.step import Score
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.reference.reference_math import best_tokens
from ferrum.sampling.rows import Row
from ferrum.sampling.sampler import REFERENCE, Sampled, SamplerInput, sample, score
from hypothesis_settings import TIMES, examples, seeds
from native_twin import TEAMS, TIERS, sampler_of
from sampling_twin import F32, best_of, request

MOST_ROWS = 64
NUMBERS = 250_000 * TIMES
"""Maximum logits of an example; a large vocabulary has fewer rows."""

vocabularies = st.one_of(st.integers(1, 130), st.integers(1, 5000), st.integers(1, 150_001), st.just(150_001))


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int]:
    """Draw (rows, V)."""
    vocabulary = draw(vocabularies)
    return draw(st.integers(0, min(MOST_ROWS, NUMBERS // vocabulary))), vocabulary


def logits_of(rng: np.random.Generator, rows: int, vocabulary: int) -> F32:
    """Draw flat and peaked rows, ties, forbidden tokens, and sometimes a row that cannot be sampled."""
    x = rng.standard_normal((rows, vocabulary), np.float32) * rng.choice([0.01, 1, 5, 30], (rows, 1)).astype(np.float32)
    tied = rng.random(rows) < 0.5
    x[tied] = np.round(x[tied] * 2) / 2
    x[(rng.random((rows, 1)) < 0.3) & (rng.random((rows, vocabulary)) < 0.3)] = -np.inf
    for row in np.flatnonzero(rng.random(rows) < 0.03):
        x[row, rng.integers(vocabulary)] = rng.choice([np.nan, np.inf])
    return x


def tokens(vocabulary: int, least: int = 0) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, vocabulary - 1), min_size=least, max_size=12)


def rules(vocabulary: int) -> st.SearchStrategy[dict[str, Any]]:
    """Draw parameters with each rule on or off."""
    some, penalty = tokens(vocabulary, least=1), st.sampled_from([-2.0, -0.5, 0.25, 2.0])
    return st.fixed_dictionaries(
        {"temperature": st.sampled_from([0.0, 9e-6, 0.01, 0.3, 0.8, 1.0, 2.0])},
        optional={
            "allowed_token_ids": some,
            "bad_words": st.lists(st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=2), max_size=4),
            "min_tokens": st.integers(1, 16),
            "stop_token_ids": some,
            "logit_bias": st.dictionaries(st.integers(0, vocabulary - 1), st.floats(-100, 100, width=32), max_size=9),
            "repetition_penalty": st.sampled_from([0.5, 0.9, 1.1, 2.0]),
            "presence_penalty": penalty,
            "frequency_penalty": penalty,
            "no_repeat_ngram_size": st.integers(1, 3),
            "dry_multiplier": st.sampled_from([0.8, 100.0]),
            "dry_allowed_length": st.integers(1, 3),
            "top_k": st.integers(1, 2 * vocabulary),
            "top_p": st.floats(1e-6, 1.0),
            "min_p": st.floats(0.0, 1.0, width=32),
            "logprobs": st.integers(-1 if vocabulary < 200 else 0, min(20, vocabulary)),
        },
    )


def outcome(work: Callable[[], object]) -> object:
    """Return the result, or the text of the error."""
    try:
        return work()
    except StepError as error:
        return type(error), str(error)


def comparable(sampled: Sampled | StepError) -> object:
    """Return an error as its text, so that equal errors compare equal."""
    return (type(sampled), str(sampled)) if isinstance(sampled, StepError) else sampled


@pytest.mark.parametrize(("tier", "threads"), TEAMS)
@examples(12)
@given(seed=seeds, shape=shapes(), key=st.integers(-(2**63), 2**63 - 1), data=st.data())
def test_sampled_tokens_equal_numpy_under_any_rules(tier, threads, seed, shape, key, data):
    """The rows of a span with drafts are sampled together; the token of each row is a draft of the next rows."""
    rng, (_, vocabulary) = np.random.default_rng(seed), shape
    history = data.draw(tokens(vocabulary, least=1))
    wish = request(history, prompt=1, seed=key, choice=seed % 3, eos=[0], **data.draw(rules(vocabulary)))
    bits = st.none() | st.binary(min_size=1, max_size=vocabulary // 8 + 1)
    logits = logits_of(rng, *shape)
    choices: list[SamplerInput] = []
    expected: list[Sampled | StepError] = []
    for row in logits[np.isfinite(logits.max(axis=1))]:  # a step refuses other rows
        drafts = [each.token if isinstance(each, Sampled) else 0 for each in expected]
        choices.append(SamplerInput(row, best_of(row), Row(wish, drafts, data.draw(bits))))
        expected += sample(choices[-1:], REFERENCE)
    kept = [each.logits.copy() for each in choices]
    assert list(map(comparable, sample(choices, sampler_of(tier, threads)))) == list(map(comparable, expected))
    for choice, before in zip(choices, kept, strict=True):
        np.testing.assert_array_equal(choice.logits, before)


@pytest.mark.parametrize("tier", TIERS)
@examples(10)
@given(seed=seeds, shape=shapes(), top=st.integers(0, 20))
def test_scores_and_top_tokens_equal_numpy(tier, seed, shape, top):
    rng, sampler, (rows, vocabulary) = np.random.default_rng(seed), sampler_of(tier, 2), shape
    logits = logits_of(rng, rows, vocabulary)
    np.testing.assert_array_equal(NativeKernels(tier, 2).best(logits)[:, 0], best_tokens(logits))
    wish = Score(tuple(rng.integers(vocabulary, size=rows).tolist()), min(top, vocabulary))
    ours, theirs = (outcome(partial(score, logits, wish, each)) for each in (sampler, REFERENCE))
    assert ours == theirs
