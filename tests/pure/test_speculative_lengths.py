"""How many guesses are verified: by what steps cost, and by how guesses have fared. The answers never differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ferrum.core.params import SamplingParams
from ferrum.core.types import Request, Sequence
from ferrum.scheduler.drafts import Room, Wish
from ferrum.scheduler.sequence import begin
from ferrum.scheduler.step_cost_model import StepCosts
from ferrum.speculative.draft_length import Candidate, Tally, best_lengths
from ferrum.speculative.speculator import RETRY, Speculator
from fixed_costs import SetCosts
from fixed_proposers import Always

MOST = 8


def costs_of(seconds: Callable[[int], float]) -> StepCosts:
    costs = StepCosts()
    for _ in range(9):
        for rows in range(1, 40):
            costs.observe(rows, 0, seconds(rows))
    return costs


def lengths(seconds: Callable[[int], float], *likely: float, budget: int = 99, draft: float | None = None) -> list[int]:
    candidates = [Candidate(MOST, each, computed=draft is not None) for each in likely]
    room = Room(len(likely), 0, budget)
    return best_lengths(candidates, room, costs_of(seconds), lambda sequences: draft or 0.0)


def test_free_rows_are_all_used_and_dear_ones_are_not() -> None:
    assert lengths(lambda rows: 1.0, 0.9) == [MOST]
    assert lengths(lambda rows: float(rows), 0.9) == [0]
    assert 1 <= lengths(lambda rows: 1 + 0.2 * rows, 0.8)[0] < MOST


def test_hopeless_guesses_are_not_verified_even_where_it_is_free() -> None:
    assert lengths(lambda rows: 1.0, 0.02) == [0]


def test_a_draft_goes_as_far_as_a_jump_in_the_costs() -> None:
    assert lengths(lambda rows: 1.0 if rows <= 4 else 2.0, 0.9) == [3]
    assert lengths(lambda rows: 1.0 if rows <= 8 else 3.0, 0.9, 0.9) == [3, 3]


def test_the_likelier_sequence_gets_more_of_the_rows() -> None:
    sure, unsure = lengths(lambda rows: 1.0 if rows <= 8 else 9.0, 0.8, 0.6)
    assert sure + unsure == 6 and sure > unsure > 0


def test_nobody_is_left_behind_by_equals() -> None:
    """They end together: who is alone at the end runs in steps that bring one token each."""
    assert lengths(lambda rows: 1.0 if rows <= 4 else 9.0, 0.9, 0.9, 0.9) == [0, 0, 0]
    assert lengths(lambda rows: 1.0 if rows <= 4 else 9.0, 0.8, 0.9, 0.8) == [0, 1, 0]


def test_the_budget_of_the_step_is_kept() -> None:
    assert sum(lengths(lambda rows: 1.0, 0.9, 0.8, 0.7, budget=5)) == 5


def test_the_time_of_computing_guesses_counts() -> None:
    assert lengths(lambda rows: 1.0, 0.9, draft=0.05)[0] == MOST
    assert 1 <= lengths(lambda rows: 1.0, 0.6, draft=0.2)[0] < 4
    assert lengths(lambda rows: 1.0, 0.9, draft=1.0) == [0]


def test_before_any_measurement_a_step_without_guesses_tells_what_steps_cost() -> None:
    assert best_lengths([Candidate(3, 0.6, computed=False)], Room(1, 0, 99), StepCosts(), lambda _: 0.0) == [0]


def test_beyond_what_was_measured_a_step_is_doubled_at_most() -> None:
    costs = StepCosts()
    costs.observe(4, 0, 1.0)
    sure = [Candidate(MOST, 0.9, computed=False)] * 4
    for rows in (8, 16, 32):
        assert sum(best_lengths(sure, Room(4, 0, 99), costs, lambda _: 0.0)) == rows - 4
        costs.observe(rows, 0, 1.0)
    assert sum(best_lengths(sure, Room(4, 0, 15), costs, lambda _: 0.0)) == 15


def test_the_credit_bounds_what_guesses_may_take() -> None:
    room, costs = Room(1, 0, 99), costs_of(lambda rows: 1 + 0.1 * rows)
    sure = [Candidate(MOST, 0.99, computed=False)]
    found = [best_lengths(sure, room, costs, lambda _: 0.0, credit) for credit in (-0.5, 0.0, 0.3, 9.0)]
    assert found == [[0], [0], [3], [MOST]]


def test_what_prompts_in_the_step_take_makes_guesses_no_cheaper() -> None:
    costs = costs_of(lambda rows: 1 + 0.9 * rows)
    for rows in (1, 30):
        assert best_lengths([Candidate(MOST, 0.5, computed=False)], Room(rows, 0, 9), costs, lambda _: 0.0) == [0]


def test_a_tally_believes_what_was_of_late() -> None:
    tally = Tally()
    tally.note(40, 0)
    assert tally.likely() > 0.9
    tally.note(0, 40)
    assert tally.likely() < 0.15
    for _ in range(1000):
        tally.fade()
    assert tally.likely(0.5) == pytest.approx(0.5, abs=0.01)


def sequence() -> Sequence:
    return begin(Request("a", (1, 2), SamplingParams(), 0))[0]


def step(speculator: Speculator, one: Sequence, truth: int) -> int:
    """Let the speculator guess, and the sequence go on with `truth` for ever; how many guesses were verified."""
    (drafts,) = speculator.draft([Wish(one, 20)], Room(1, len(one.tokens), 64))
    accepted = next((place for place, token in enumerate(drafts) if token != truth), len(drafts))
    if drafts:
        speculator.learn(one, len(drafts), accepted)
    one.tokens += [truth] * (accepted + 1)
    return len(drafts)


def test_wrong_guesses_soon_cost_nothing_and_right_ones_are_noticed_again() -> None:
    speculator = Speculator(costs_of(lambda rows: 1 + 0.1 * rows), most=MOST, proposers=[Always(*[5] * MOST)])
    one = sequence()
    assert step(speculator, one, truth=9) > 0
    assert sum(step(speculator, one, truth=9) for _ in range(10)) < 10
    assert sum(step(speculator, one, truth=9) for _ in range(200)) == 0
    assert sum(step(speculator, one, truth=5) for _ in range(20)) > 40
    assert step(speculator, one, truth=5) == MOST


def test_guesses_that_are_right_but_too_dear_are_tried_ever_more_rarely_in_case_costs_have_changed() -> None:
    speculator = Speculator(costs_of(lambda rows: float(rows)), most=MOST, proposers=[Always(*[5] * MOST)])
    one = sequence()
    tried = [at for at in range(1, 7 * RETRY + 1) if step(speculator, one, truth=5)]
    assert tried == [RETRY, 3 * RETRY, 7 * RETRY]


def test_what_was_verified_is_counted_by_place() -> None:
    speculator = Speculator(SetCosts(), most=4, proposers=[Always(5, 5, 7)])
    one = sequence()
    for _ in range(3):
        step(speculator, one, truth=5)
    counts = speculator.counts
    assert (counts.drafts, counts.draft_tokens, counts.accepted_tokens) == (3, 9, 6)
    assert counts.accepted_per_position == (3, 3, 0, 0)
    speculator.forget(one)
    assert speculator.counts == counts
