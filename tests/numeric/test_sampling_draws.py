"""Draws follow the distribution, depend only on the request, break ties by id, and never take forbidden tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ferrum.core.errors import NonFiniteLogits
from ferrum.core.step import Span
from ferrum.kernels.reference import ReferenceKernels
from ferrum.runtime.span_results import SpanRows
from sampling_twin import request, sample, twin

LOGITS = np.array([0.5, -1.0, 2.0, 0.0, 1.0, -3.0, 1.5, 0.2, -0.5, 1.2, 0.9, -2.0], np.float32)
# Chi-squared critical values at p = 1e-4, by degrees of freedom.
CRITICAL = {3: 21.11, 4: 23.51, 11: 37.37, 15: 44.26}


def draws(count: int, **params: Any) -> list[int]:
    """Return one draw at each of `count` positions."""
    history: list[int] = [0]
    tokens = []
    for _ in range(count):
        tokens.append(sample(LOGITS, request(history, **params)).token)
        history.append(0)
    return tokens


@pytest.mark.parametrize(
    "params",
    [{}, {"temperature": 0.6, "top_k": 5}, {"temperature": 1.4, "top_p": 0.5}],
    ids=["plain", "top-k", "top-p"],
)
def test_draws_follow_the_distribution(params: dict[str, Any]) -> None:
    want = twin(LOGITS, request(**params))
    count = 3000
    observed = np.bincount(draws(count, **params), minlength=LOGITS.size)
    live = want > 0
    assert observed[~live].sum() == 0
    statistic = ((observed[live] - count * want[live]) ** 2 / (count * want[live])).sum()
    assert statistic < {5: CRITICAL[4], 12: CRITICAL[11]}.get(int(live.sum()), CRITICAL[4])


def test_choices_are_independent_of_each_other() -> None:
    logits = np.zeros(4, np.float32)
    pairs = np.zeros((4, 4))
    for position in range(2000):
        history = [0] * (position + 1)
        first, second = (sample(logits, request(history, choice=choice)).token for choice in (0, 1))
        pairs[first, second] += 1
    assert ((pairs - 125) ** 2 / 125).sum() < CRITICAL[15]


def test_choice_differs_from_a_neighbouring_seed() -> None:
    histories = [[0] * k for k in range(1, 60)]
    other_choice = [sample(LOGITS, request(h, seed=3, choice=1)).token for h in histories]
    other_seed = [sample(LOGITS, request(h, seed=4, choice=0)).token for h in histories]
    same = [sample(LOGITS, request(h, seed=3, choice=0)).token for h in histories]
    assert other_choice != other_seed and other_choice != same and other_seed != same


def test_draw_depends_only_on_position_seed_and_logits() -> None:
    """Without penalties, the tokens of the history and the prompt length have no effect."""
    a = [sample(LOGITS, request([1] * k, prompt=1)).token for k in range(1, 50)]
    b = [sample(LOGITS, request([2] * k, prompt=k)).token for k in range(1, 50)]
    assert a == b and len(set(a)) > 1


def test_row_gives_the_same_bits_alone_and_in_a_batch() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(0, 2, (16, 301)).astype(np.float32)
    sampling = request([4, 5, 6], logprobs=7, temperature=0.8, top_p=0.9)
    alone = [sample(row.copy(), sampling) for row in rows]
    assert [sample(row, sampling) for row in rows] == alone
    assert [sample(row, sampling) for row in np.asfortranarray(rows)] == alone


def test_sampling_does_not_change_the_logits() -> None:
    logits = LOGITS.copy()
    sample(logits, request([2, 2], temperature=0.5, repetition_penalty=2.0, logit_bias={1: 9.0}, bad_words=[[2]]))
    assert np.array_equal(logits, LOGITS)


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-4}])
def test_greedy_and_its_equivalents_take_the_most_likely_token(params: dict[str, Any]) -> None:
    assert all(sample(LOGITS, request([0] * k, **params)).token == 2 for k in range(1, 30))


@pytest.mark.contract("5.ties go one way")
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-9}])
def test_ties_go_to_the_lowest_id(params: dict[str, Any]) -> None:
    logits = np.array([1, 3, 0, 3, 3], np.float32)
    assert all(sample(logits, request([0] * k, **params)).token == 1 for k in range(1, 30))


def test_greedy_obeys_masks_bias_and_penalties() -> None:
    greedy = {"temperature": 0.0}
    assert sample(LOGITS, request(bad_words=[[2]], **greedy)).token == 6
    assert sample(LOGITS, request(logit_bias={5: 100.0}, **greedy)).token == 5
    assert sample(LOGITS, request([0, 2], presence_penalty=2.0, **greedy)).token == 6


@pytest.mark.contract("5.no token of probability zero is drawn")
def test_token_of_zero_probability_is_never_drawn() -> None:
    """Two thousand tokens are at minus infinity or far below; two tokens share the mass."""
    logits = np.full(2002, -np.inf, np.float32)
    logits[1000:2000] = -200.0
    logits[[7, 1500]] = 0.0
    assert {sample(logits, request([0] * k)).token for k in range(1, 200)} == {7, 1500}


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"bad_words": [[3]]}])
def test_nan_is_an_error_even_if_masked(params: dict[str, Any]) -> None:
    logits = LOGITS[None].copy()
    logits[0, 3] = np.nan
    rows = SpanRows(Span("a", 0, (1,), sampling=request(**params)))
    best = ReferenceKernels().best(logits)[:, 0].tolist()
    with pytest.raises(NonFiniteLogits):
        rows.take(0, logits, best, np.empty((0, 4), np.float32))
