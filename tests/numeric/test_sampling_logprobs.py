"""Log-probabilities of raw logits, with ranks and top tokens."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ferrum.core.errors import NonFiniteLogits
from ferrum.core.step import Score
from ferrum.sampling.probabilities import rank, token_logprobs, top
from ferrum.sampling.sampler import score
from sampling_twin import request, sample

ROWS = np.random.default_rng(1).normal(0, 4, (6, 500)).astype(np.float32)


def test_log_probabilities_match_log_softmax_of_torch() -> None:
    want = torch.log_softmax(torch.from_numpy(ROWS).double(), -1).numpy()
    for row, exact in zip(ROWS, want, strict=True):
        got = token_logprobs(row, 17, -1)
        assert got.logprob == pytest.approx(exact[17], abs=2e-6)
        assert len(got.top) == 500
        np.testing.assert_allclose([value for _, value in got.top], exact[[token for token, _ in got.top]], atol=2e-6)


def test_rules_do_not_change_log_probabilities() -> None:
    plain = token_logprobs(ROWS[0], 3, 5)
    rules = request(
        [3, 3], temperature=0.3, top_k=2, allowed_token_ids=[3], repetition_penalty=2.0, logit_bias={3: 9.0}, logprobs=5
    )
    sampled = sample(ROWS[0], rules)
    assert sampled.token == 3 and sampled.logprobs == plain


def test_logprobs_none_zero_and_all_are_distinct() -> None:
    assert sample(ROWS[0], request()).logprobs is None
    assert sample(ROWS[0], request(logprobs=0)).logprobs == token_logprobs(ROWS[0], sample(ROWS[0], request()).token, 0)
    assert token_logprobs(ROWS[0], 3, 0).top == ()
    everything = sample(ROWS[0], request(logprobs=-1)).logprobs
    assert everything is not None and len(everything.top) == 500


few_values = st.lists(st.sampled_from([-np.inf, -1.5, -0.0, 0.0, 2.0, 7.0]), min_size=1, max_size=40)


@given(few_values, st.integers(0, 45))
def test_top_and_rank_are_a_stable_descending_sort(values: list[float], count: int) -> None:
    logits = np.array(values, np.float32)
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    assert top(logits, count).tolist() == order[:count]
    assert [rank(logits, token) for token in order] == list(range(1, len(values) + 1))


def test_prompt_scores_equal_those_of_each_row() -> None:
    targets = (4, 499, 0, 17, 17)
    got = score(ROWS, Score(targets=targets, top=3))
    assert got == tuple(token_logprobs(row.copy(), target, 3) for row, target in zip(ROWS, targets, strict=False))
    assert [each.token for each in got] == list(targets)


def test_prompt_scores_take_memory_of_one_row() -> None:
    rows = np.zeros((64, 20_000), np.float32)
    tracemalloc.start()
    score(rows, Score(targets=(1,) * 64, top=5))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows.nbytes / 4


def test_forbidden_token_has_minus_infinity() -> None:
    got = token_logprobs(np.array([0, -np.inf], np.float32), 1, 2)
    assert got.logprob == -np.inf and got.top == ((0, 0.0), (1, -np.inf)) and got.rank == 2


def test_non_finite_rows_are_refused() -> None:
    with pytest.raises(NonFiniteLogits):
        score(np.array([[1, np.nan]], np.float32), Score(targets=(0,), top=1))
