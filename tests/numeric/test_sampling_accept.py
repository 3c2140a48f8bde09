"""Verification of drafts gives the tokens and log-probabilities of sampling one token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrum.core.errors import StepError
from ferrum.core.step import Sampling
from ferrum.sampling.sampler import Sampled, Verification
from ferrum.sampling.sampler import accept as accept_all
from sampling_twin import F32, accept, best_of, request, sample

V = 24


def model(tokens: list[int]) -> F32:
    """Return logits that depend on the last three tokens, so that repetitions and wrong drafts matter."""
    return np.random.default_rng(tokens[-3:]).normal(0, 2, V).astype(np.float32)


def one_by_one(sampling: Sampling, count: int, masks: Sequence[bytes | None] = ()) -> list[Sampled]:
    history = list(sampling.history)
    chosen = []
    for step in range(count):
        mask = masks[step] if masks else None
        chosen.append(sample(model(history), replace(sampling, history=list(history)), mask=mask))
        history.append(chosen[-1].token)
    return chosen


token_ids = st.integers(0, V - 1)
parameters = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.8, 1.5]),
        "top_k": st.sampled_from([0, 5]),
        "top_p": st.sampled_from([1.0, 0.9]),
        "min_p": st.sampled_from([0.0, 0.05]),
        "repetition_penalty": st.sampled_from([1.0, 1.4]),
        "presence_penalty": st.sampled_from([0.0, 1.0]),
        "frequency_penalty": st.sampled_from([0.0, -0.5]),
        "logit_bias": st.none() | st.dictionaries(token_ids, st.floats(-5, 5, width=32), max_size=3),
        "min_tokens": st.integers(0, 8),
        "logprobs": st.sampled_from([None, 0, 3]),
        "bad_words": st.lists(st.lists(token_ids, min_size=1, max_size=2), max_size=3),
        "eos": st.lists(token_ids, max_size=2),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "choice": st.integers(0, 3),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    parameters,
    st.lists(token_ids, min_size=1, max_size=6),
    st.integers(1, 6),
    st.lists(st.none() | token_ids, max_size=8),
    st.booleans(),
)
def test_drafts_never_change_the_sampled_tokens(
    params: dict[str, Any], history: list[int], prompt: int, guesses: list[int | None], constrained: bool
) -> None:
    """A draft of None stands for the right token."""
    masks = tuple(bytes([255 - row, 255, 255]) for row in range(9)) if constrained else ()
    sampling = request(history, prompt=min(prompt, len(history)), **params)
    sequential = one_by_one(sampling, len(guesses) + 1, masks)
    drafts = [right.token if guess is None else guess for guess, right in zip(guesses, sequential, strict=False)]
    logits = np.stack([model(history + drafts[:row]) for row in range(len(drafts) + 1)])

    got = accept(logits, drafts, sampling, masks)

    right = 0
    while right < len(drafts) and drafts[right] == sequential[right].token:
        right += 1
    assert got.accepted == right
    assert got.tokens == tuple(each.token for each in sequential[: right + 1])
    if sampling.params.logprobs is None:
        assert got.logprobs is None
    else:
        assert got.logprobs == tuple(each.logprobs for each in sequential[: right + 1])


def test_verification_without_drafts_is_sampling() -> None:
    sampling = request([1, 2, 3], logprobs=2)
    alone = sample(model([1, 2, 3]), sampling)
    got = accept(model([1, 2, 3])[None], [], sampling)
    assert (got.tokens, got.logprobs, got.accepted) == ((alone.token,), (alone.logprobs,), 0)


def test_error_in_a_later_row_leaves_its_draft_unverified() -> None:
    """The next step then reports the error from its first row, as without drafts."""
    peaked = np.zeros((3, V), np.float32)
    peaked[[0, 1], [4, 5]] = 9.0
    got = accept(peaked, [4, 5], request(temperature=0.0), (None, None, bytes(3)))
    assert (got.tokens, got.accepted) == ((4, 5), 1)


def test_error_in_the_first_row_is_the_result_of_the_span() -> None:
    rows = np.zeros((2, V), np.float32)
    with pytest.raises(StepError):
        accept(rows, [4], request(), (bytes(3), None))


def test_sequences_of_a_batch_get_the_results_of_each_alone() -> None:
    """The batch mixes long, missing, right and wrong drafts, and a sequence that cannot be sampled."""
    verifications = []
    for seed in range(12):
        sampling = request([seed], seed=seed, temperature=[0.0, 1.0][seed % 2], logprobs=[None, 2][seed % 3 == 0])
        masks = (bytes(3),) * 9 if seed == 5 else ()
        drafts = [each.token for each in one_by_one(sampling, seed % 4)]
        if seed % 4 == 3:
            drafts[-1] = (drafts[-1] + 1) % V
        logits = np.stack([model([seed, *drafts[:row]]) for row in range(len(drafts) + 1)])
        verifications.append(Verification(logits, [best_of(row) for row in logits], drafts, sampling, masks))
    together = accept_all(verifications)
    assert isinstance(together[5], StepError)
    for verification, outcome in zip(verifications, together, strict=True):
        if not isinstance(outcome, StepError):
            assert [outcome] == accept_all([verification])
            assert outcome == accept(verification.logits, verification.drafts, verification.sampling)
