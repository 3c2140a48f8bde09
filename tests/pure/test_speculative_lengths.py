"""How many draft tokens are verified, by the cost of steps and by acceptance. Answers never depend on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ferrum.core.params import SamplingParams
from ferrum.core.policy_config import POLICY
from ferrum.core.types import Request
from ferrum.scheduler.drafts import DraftRequest, StepLoad
from ferrum.scheduler.sequence import Sequence, begin
from ferrum.scheduler.step_plan import StepCosts
from ferrum.speculative.speculator import AcceptanceRate, Candidate, Speculator, best_lengths
from fixed_costs import SetCosts
from fixed_proposers import Always

MAX_DRAFT = 8


def costs_of(seconds: Callable[[int], float]) -> StepCosts:
    costs = StepCosts()
    for _ in range(9):
        for rows in range(1, 40):
            costs.observe(rows, 0, seconds(rows))
    return costs


def lengths(seconds: Callable[[int], float], *rates: float, budget: int = 99, draft: float | None = None) -> list[int]:
    candidates = [Candidate(MAX_DRAFT, each, computed=draft is not None) for each in rates]
    room = StepLoad(len(rates), 0, budget)
    return best_lengths(candidates, room, costs_of(seconds), lambda sequences: draft or 0.0)[0]


def test_free_rows_are_all_used_and_expensive_ones_are_not() -> None:
    assert lengths(lambda rows: 1.0, 0.9) == [MAX_DRAFT]
    assert lengths(lambda rows: float(rows), 0.9) == [0]
    assert 1 <= lengths(lambda rows: 1 + 0.2 * rows, 0.8)[0] < MAX_DRAFT


def test_drafts_that_gain_less_than_the_minimum_are_not_verified() -> None:
    assert lengths(lambda rows: 1.0, 0.04) == [0]
    assert lengths(lambda rows: 1.0, 0.06)[0] > 0


def test_a_draft_ends_at_a_jump_in_the_costs() -> None:
    assert lengths(lambda rows: 1.0 if rows <= 4 else 2.0, 0.9) == [3]
    assert lengths(lambda rows: 1.0 if rows <= 8 else 3.0, 0.9, 0.9) == [3, 3]


def test_the_sequence_with_the_higher_acceptance_gets_more_rows() -> None:
    high, low = lengths(lambda rows: 1.0 if rows <= 8 else 9.0, 0.8, 0.6)
    assert high + low == 6 and high > low > 0


def test_the_budget_of_the_step_is_kept() -> None:
    assert sum(lengths(lambda rows: 1.0, 0.9, 0.8, 0.7, budget=5)) == 5


def test_the_time_of_computing_drafts_counts() -> None:
    assert lengths(lambda rows: 1.0, 0.9, draft=0.05)[0] == MAX_DRAFT
    assert 1 <= lengths(lambda rows: 1.0, 0.6, draft=0.2)[0] < 4
    assert lengths(lambda rows: 1.0, 0.9, draft=1.0) == [0]


def test_nothing_is_verified_before_the_first_measurement() -> None:
    assert best_lengths([Candidate(3, 0.6, computed=False)], StepLoad(1, 0, 99), StepCosts(), lambda _: 0.0)[0] == [0]


def test_a_step_at_most_doubles_beyond_what_was_measured() -> None:
    costs = StepCosts()
    costs.observe(4, 0, 1.0)
    four = [Candidate(MAX_DRAFT, 0.9, computed=False)] * 4
    for rows in (8, 16, 32):
        assert sum(best_lengths(four, StepLoad(4, 0, 99), costs, lambda _: 0.0)[0]) == rows - 4
        costs.observe(rows, 0, 1.0)
    assert sum(best_lengths(four, StepLoad(4, 0, 15), costs, lambda _: 0.0)[0]) == 15


@pytest.mark.parametrize("rows", [1, 30])
def test_prompt_chunks_in_the_step_make_drafts_no_cheaper(rows: int) -> None:
    costs = costs_of(lambda rows: 1 + 0.9 * rows)
    one = [Candidate(MAX_DRAFT, 0.5, computed=False)]
    assert best_lengths(one, StepLoad(rows, 0, 9), costs, lambda _: 0.0) == ([0], 1.0)


def test_an_acceptance_rate_follows_its_window() -> None:
    rate = AcceptanceRate(window=16)
    for _ in range(40):
        rate.observe(True)
    assert rate.rate > 0.9
    for _ in range(40):
        rate.observe(False)
    assert rate.rate < 0.15


def test_the_first_observations_outweigh_the_initial_rate() -> None:
    rate = AcceptanceRate(window=64)
    for _ in range(8):
        rate.observe(False)
    assert rate.rate < 0.15


def sequence() -> Sequence:
    return begin(Request("a", (1, 2), SamplingParams(), 0))[0]


def step(speculator: Speculator, one: Sequence, truth: int) -> int:
    """Draft once and continue the sequence with `truth`; return how many draft tokens were verified."""
    (draft,) = speculator.draft([DraftRequest(one, 20)], StepLoad(1, len(one.tokens), 64))
    accepted = next((position for position, token in enumerate(draft) if token != truth), len(draft))
    if draft:
        speculator.learn(one, len(draft), accepted)
    one.tokens += [truth] * (accepted + 1)
    return len(draft)


def test_wrong_drafts_soon_stop_and_right_ones_are_noticed_without_verification() -> None:
    proposers = [Always(*[5] * MAX_DRAFT)]
    speculator = Speculator(costs_of(lambda rows: 1 + 0.1 * rows), max_draft=MAX_DRAFT, proposers=proposers)
    one = sequence()
    assert step(speculator, one, truth=9) > 0
    for _ in range(40):
        step(speculator, one, truth=9)
    assert sum(step(speculator, one, truth=9) for _ in range(200)) == 0
    assert sum(step(speculator, one, truth=5) for _ in range(20)) > 40
    assert step(speculator, one, truth=5) == MAX_DRAFT


def test_right_but_too_expensive_drafts_are_retried_at_fixed_intervals() -> None:
    speculator = Speculator(costs_of(float), max_draft=MAX_DRAFT, proposers=[Always(*[5] * MAX_DRAFT)])
    one = sequence()
    retry = POLICY.draft_retry_steps
    tried = [at for at in range(1, 3 * retry + 1) if step(speculator, one, truth=5)]
    assert tried == [retry, 2 * retry, 3 * retry]


def test_verified_tokens_are_counted_by_position() -> None:
    speculator = Speculator(SetCosts(), max_draft=4, proposers=[Always(5, 5, 7)])
    one = sequence()
    for _ in range(3):
        step(speculator, one, truth=5)
    counts = speculator.counts
    assert (counts.drafts, counts.draft_tokens, counts.accepted_tokens) == (3, 9, 6)
    assert counts.accepted_per_position == (3, 3, 0, 0)
    speculator.forget(one)
    assert speculator.counts == counts
