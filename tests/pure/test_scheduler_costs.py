"""Predicted step durations against a machine with known durations."""

from __future__ import annotations

from random import Random

import pytest

from ferrum.core.step import Span, SpanResult, StepBatch, StepOutput, Want
from ferrum.scheduler.step_plan import StepCosts, total_context_cost

SIZES = (1, 2, 5, 9)


def seconds(rows: int, context: int) -> float:
    """Reading weights takes 30 ms, arithmetic 4 ms a row from the fifth on, and a stored token 10 us."""
    return 0.03 + 0.004 * max(0, rows - 4) + 1e-5 * context


def learn(costs: StepCosts, *, pace: float = 1.0, rounds: int = 40, sizes: tuple[int, ...] = SIZES) -> None:
    """Observe steps of each size in turn with a growing context."""
    for step in range(rounds * len(sizes)):
        rows, context = sizes[step % len(sizes)], 200 + 97 * step % 4096
        costs.observe(rows, context, pace * seconds(rows, context))


def test_prediction_is_zero_before_the_first_step() -> None:
    assert StepCosts().predict(3, 100) == 0.0


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("context", [0, 700, 5000])
def test_durations_are_learned(rows: int, context: int) -> None:
    costs = StepCosts()
    learn(costs)
    assert costs.predict(rows, context) == pytest.approx(seconds(rows, context), rel=0.05)


def test_unseen_sizes_are_interpolated_and_extrapolated() -> None:
    costs = StepCosts()
    learn(costs, sizes=(5, 9))
    assert costs.predict(5, 500) < costs.predict(7, 500) < costs.predict(9, 500) < costs.predict(12, 500)
    assert costs.predict(7, 500) == pytest.approx(seconds(7, 500), rel=0.05)
    assert costs.predict(13, 500) == pytest.approx(seconds(13, 500), rel=0.05)
    assert costs.predict(1, 500) == costs.predict(5, 500), "fewer rows are not known to cost less"


def test_single_size_predicts_the_same_for_all_rows() -> None:
    costs = StepCosts()
    learn(costs, sizes=(1,))
    assert costs.predict(6, 500) == costs.predict(1, 500)


def test_large_steps_are_grouped_by_size() -> None:
    costs = StepCosts()
    for rows in range(480, 500):
        costs.observe(rows, 0, 1.0)
    assert costs.predict(511, 0) == costs.predict(480, 0) == 1.0
    assert (costs.smallest, costs.largest) == (480, 496)


def test_noise_averages_out() -> None:
    random, costs = Random(1), StepCosts()
    for step in range(2000):
        rows, context = SIZES[step % 4], 97 * step % 4096
        costs.observe(rows, context, seconds(rows, context) * (1 + random.expovariate(10)))
    for rows in SIZES:
        assert costs.predict(rows, 500) == pytest.approx(1.1 * seconds(rows, 500), rel=0.15)


def test_delayed_step_counts_at_most_double() -> None:
    costs = StepCosts()
    learn(costs)
    before = costs.predict(9, 500)
    costs.observe(9, 500, 100 * seconds(9, 500))
    assert before <= costs.predict(9, 500) <= 1.25 * before


def test_slower_machine_is_learned_within_a_few_steps() -> None:
    costs = StepCosts()
    learn(costs)
    learn(costs, pace=2.0, rounds=12)
    for rows in SIZES:
        assert costs.predict(rows, 500) == pytest.approx(2 * seconds(rows, 500), rel=0.15)


def took(*spans: tuple[int, int]) -> float:
    """Return the duration of spans of (rows, stored tokens); a row reads 0.15 of a stored token, as in Qwen3-0.6B."""
    rows = sum(rows for rows, _ in spans)
    return max(0.02, 0.0014 * rows) + sum(max(4.3e-6, 0.65e-6 * rows) * stored for rows, stored in spans)


def step(*spans: tuple[int, int]) -> tuple[Span, ...]:
    return tuple(Span(str(index), at, (1,) * rows, want=Want.NONE) for index, (rows, at) in enumerate(spans))


def test_stored_tokens_of_long_chunks_are_weighted_by_their_rows() -> None:
    """A prompt chunk computes with each stored token for hundreds of rows; decoding reads it once."""
    costs = StepCosts()
    for count in range(640):
        spans = ([(512, count // 4 % 32 * 400)], [(256, count // 4 % 32 * 400)], [(1, count * 97 % 4096)])[count % 3]
        costs.observe_step(StepBatch(step(*spans)), StepOutput((SpanResult(1, ()),) * len(spans), took(*spans)))
    for spans in ([(512, 6000)], [(1, 3000)]):
        rows = sum(rows for rows, _ in spans)
        predicted = costs.predict(rows, total_context_cost(step(*spans)))
        assert predicted == pytest.approx(took(*spans), rel=0.3)
