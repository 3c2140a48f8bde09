"""The price of a step, learned from steps of a machine whose price list is known here."""

from __future__ import annotations

from random import Random

import pytest

from ferrum.scheduler.step_cost_model import StepCosts

SIZES = (1, 2, 5, 9)


def seconds(rows: int, context: int) -> float:
    """Reading weights takes 30 ms, arithmetic 4 ms a row from the fifth on, and a stored token 10 us."""
    return 0.03 + 0.004 * max(0, rows - 4) + 1e-5 * context


def learn(costs: StepCosts, *, pace: float = 1.0, rounds: int = 40, sizes: tuple[int, ...] = SIZES) -> None:
    """Steps of each size in turn with a growing context; every seventh step is held up for a fifth of a second."""
    for step in range(rounds * len(sizes)):
        rows, context = sizes[step % len(sizes)], 200 + 97 * step % 4096
        costs.observe(rows, context, pace * seconds(rows, context) + 0.2 * (step % 7 == 3))


def test_nothing_costs_anything_before_the_first_step() -> None:
    assert StepCosts().predict(3, 100) == 0.0


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("context", [0, 700, 5000])
def test_the_price_list_is_found_in_spite_of_steps_that_were_held_up(rows: int, context: int) -> None:
    costs = StepCosts()
    learn(costs)
    assert costs.predict(rows, context) == pytest.approx(seconds(rows, context), rel=0.05)


def test_sizes_never_seen_are_between_and_beyond_those_that_were() -> None:
    costs = StepCosts()
    learn(costs, sizes=(5, 9))
    assert costs.predict(5, 500) < costs.predict(7, 500) < costs.predict(9, 500) < costs.predict(12, 500)
    assert costs.predict(7, 500) == pytest.approx(seconds(7, 500), rel=0.05)
    assert costs.predict(13, 500) == pytest.approx(seconds(13, 500), rel=0.05)
    assert costs.predict(1, 500) == costs.predict(5, 500), "fewer rows are not known to cost less"


def test_one_size_alone_says_nothing_against_more_rows() -> None:
    costs = StepCosts()
    learn(costs, sizes=(1,))
    assert costs.predict(6, 500) == costs.predict(1, 500)


def test_a_slower_machine_is_slower_for_the_sizes_that_it_has_not_run_since() -> None:
    costs = StepCosts()
    learn(costs)
    learn(costs, sizes=(1,), pace=2.0)
    for rows in SIZES:
        assert costs.predict(rows, 500) == pytest.approx(2 * seconds(rows, 500), rel=0.1)
    learn(costs, sizes=(9,))
    for rows in SIZES:
        assert costs.predict(rows, 500) == pytest.approx(seconds(rows, 500), rel=0.1)


def test_large_steps_are_known_by_about_their_size() -> None:
    costs = StepCosts()
    for rows in range(480, 500):
        costs.observe(rows, 0, 1.0)
    assert costs.predict(511, 0) == costs.predict(480, 0) == 1.0


def test_noise_in_the_pace_does_not_add_up() -> None:
    """Of one size alone nobody can tell whether the machine has become slower or the size dearer."""
    random, costs = Random(1), StepCosts()
    learn(costs)
    for _ in range(40_000):
        costs.observe(1, 500, seconds(1, 500) * (1 + random.expovariate(10)))
    assert costs.predict(9, 500) == pytest.approx(1.1 * seconds(9, 500), rel=0.25)


def test_one_step_that_was_held_up_sets_no_pace() -> None:
    costs = StepCosts()
    for _ in range(9):
        costs.observe(256, 0, 0.4)
    costs.observe(256, 0, 4.0)
    for rows in range(32, 60, 2):
        costs.observe(rows, 0, 0.1)
    assert costs.predict(256, 0) == pytest.approx(0.4, rel=0.1)


def test_a_first_step_of_a_size_is_not_believed_where_it_was_held_up_and_a_second_one_is() -> None:
    costs = StepCosts()
    learn(costs, sizes=(1,))
    costs.observe(9, 500, 10 * seconds(9, 500))
    assert costs.predict(9, 500) == costs.predict(1, 500)
    costs.observe(9, 500, 10 * seconds(9, 500))
    assert costs.predict(9, 500) > 5 * costs.predict(1, 500)
