"""Prompts stream in beside those who decode without holding up their tokens, on a machine whose prices are known."""

from __future__ import annotations

import pytest

from ferrum.core.step import Span, SpanResult, StepBatch, StepOutput, Want
from ferrum.scheduler.drafts import Room
from ferrum.scheduler.step_budget import LEAST, Pacing
from ferrum.scheduler.step_cost_model import StepCosts, weighed
from scheduler_bench import Bench


def seconds(rows: int, context: int = 0) -> float:
    """Reading weights takes 30 ms, arithmetic 2 ms a row from the tenth on, and a stored token 10 us."""
    return 0.03 + 0.002 * max(0, rows - 10) + 1e-5 * context


def learned() -> StepCosts:
    costs = StepCosts()
    for step in range(600):
        rows = (1, 4, 10, 30, 100, 300)[step % 6]
        context = 97 * step % 4096
        costs.observe(rows, context, seconds(rows, context))
    return costs


@pytest.mark.parametrize("decoding", [1, 4, 30])
@pytest.mark.parametrize("stored", [0, 3000])
def test_a_prompt_fills_a_step_up_to_the_time_that_it_may_take(decoding: int, stored: int) -> None:
    context = 50 * decoding
    tokens = Pacing(learned(), 0.2).prompt_tokens(Room(decoding, context, 512), stored)
    assert LEAST < tokens < 512
    assert seconds(decoding + tokens, context + weighed(tokens, stored)) == pytest.approx(0.2, rel=0.1)


def took(*spans: tuple[int, int]) -> float:
    """Seconds of spans of (rows, stored tokens), of which a row of a prompt takes 0.15 of a read, as in Qwen3-0.6B."""
    rows = sum(rows for rows, _ in spans)
    return max(0.02, 0.0014 * rows) + sum(max(4.3e-6, 0.65e-6 * rows) * stored for rows, stored in spans)


def test_what_a_long_prompt_took_is_not_believed_of_those_who_decode() -> None:
    """It computes with each of its stored tokens for hundreds of rows."""
    costs = StepCosts()
    for step in range(320):
        rows = (512, 256, 1, 8)[step % 4]
        spans = [(rows, step // 4 % 32 * 400)] if rows > 8 else [(1, step * 97 % 4096)] * rows
        asked = (Span(str(n), at, (1,) * count, want=Want.NONE) for n, (count, at) in enumerate(spans))
        costs.observe_step(StepBatch(tuple(asked)), StepOutput((SpanResult(1, ()),) * len(spans), took(*spans)))
    tokens = Pacing(costs, 0.5).prompt_tokens(Room(8, 8 * 3000, 512), 0)
    assert took(*[(1, 3000)] * 8, (tokens, 0)) == pytest.approx(0.5, rel=0.2)


def test_a_machine_that_begins_with_prompts_learns_what_less_of_them_takes() -> None:
    """All that it has seen takes longer than it may, so nothing tells that less would not."""
    costs = StepCosts()
    for start in (0, 512):
        costs.observe(512, start, 0.3 + 0.02 * 512)
    pacing = Pacing(costs, 0.5)
    for _ in range(8):
        tokens = pacing.prompt_tokens(Room(1, 100, 512), 0)
        costs.observe(1 + tokens, 100, 0.3 + 0.02 * tokens)
    assert 0.3 + 0.02 * tokens <= 1.5


def test_while_nobody_decodes_a_prompt_may_take_what_it_likes() -> None:
    assert Pacing(learned(), 0.05).prompt_tokens(Room(0, 0, 512), 0) == 512


def test_without_a_bound_or_any_experience_the_budget_is_the_bound() -> None:
    assert Pacing(learned(), None).prompt_tokens(Room(4, 100, 512), 0) == 512
    assert Pacing(StepCosts(), 0.05).prompt_tokens(Room(4, 100, 512), 0) == 512


def test_prompts_get_half_of_the_step_where_decoding_leaves_them_nothing() -> None:
    tokens = Pacing(learned(), 0.01).prompt_tokens(Room(100, 4000, 512), 0)
    assert seconds(100 + tokens, 4000) == pytest.approx(2 * seconds(100, 4000), rel=0.1)


def test_every_step_gets_somewhere() -> None:
    crawl = StepCosts()
    for _ in range(20):
        crawl.observe(1, 0, 1.0)
        crawl.observe(2, 0, 50.0)
    assert Pacing(crawl, 0.01).prompt_tokens(Room(1, 0, 512), 0) == LEAST
    assert Pacing(crawl, 0.01).prompt_tokens(Room(1, 0, 3), 0) == 3


def test_a_step_may_be_allowed_any_number_of_tokens() -> None:
    bench = Bench(budget=1 << 64, costs=learned(), decode_seconds=0.06)
    requests = [bench.add("a", 4, max_tokens=20)]
    bench.step()
    requests.append(bench.add("b", 40, seed=1, max_tokens=5))
    bench.run()
    bench.agrees(*requests)


@pytest.mark.parametrize("bound", [1e-9, 0.06, 0.1, None])
def test_whatever_the_bound_tokens_are_the_same_and_answers_come_in_time(bound: float | None) -> None:
    bench = Bench(num_pages=400, budget=200, context=400, max_sequences=4, costs=learned(), decode_seconds=bound)
    requests = [bench.add("writes", 3, max_tokens=60)]
    bench.step()
    requests += [bench.add(name, 190, seed=seed, max_tokens=5) for seed, name in enumerate("abc", 1)]
    steps = bench.run()
    bench.agrees(*requests, context=400)
    rows = [sum(len(span.tokens) for span in spans) for spans in steps]
    mixed = [count for count, spans in zip(rows, steps, strict=True) if len(spans) > 1]
    assert all(any(span.cache_id == "writes/0" for span in spans) for spans in steps[:20])
    if bound is None:
        assert max(mixed) == 200
    else:
        least = seconds(4 + LEAST, 600)
        assert max(map(seconds, mixed)) <= 1.1 * max(bound, 2 * seconds(4, 600), least)


def linear(rows: int) -> float:
    """The weights take 20 ms, and so do the first ten rows; each further one 2 ms."""
    return max(0.02, 0.002 * rows)


def crowded(bound: float | None) -> tuple[int, list[tuple[int, ...]]]:
    """The most sequences that ever ran, and everybody's tokens."""
    costs = StepCosts()
    for step in range(400):
        rows = (1, 5, 10, 20, 40, 80)[step % 6]
        costs.observe(rows, 10 * rows, linear(rows))
    bench = Bench(num_pages=800, budget=64, max_sequences=40, costs=costs, decode_seconds=bound)
    requests = [bench.add(str(index), 2, seed=index, max_tokens=6) for index in range(60)]
    most = max(len(spans) for spans in bench.run())
    bench.agrees(*requests)
    return most, [bench.tokens(request.request_id) for request in requests]


def test_newcomers_wait_where_they_would_only_make_the_others_slower() -> None:
    free, tokens = crowded(None)
    assert free == 40
    for bound, places in ((1.0, 40), (0.05, 25), (0.03, 16), (0.001, 16)):
        most, same = crowded(bound)
        assert same == tokens
        assert most == pytest.approx(places, abs=2), "as fit into the time, but as many as bring more tokens a second"
