"""Bounds of a step on a machine with known durations: prompts do not delay the tokens of others beyond the target."""

from __future__ import annotations

import pytest

from ferrum.core.policy_config import POLICY
from ferrum.scheduler.drafts import StepLoad
from ferrum.scheduler.step_plan import StepBudget, StepCosts, context_cost
from scheduler_bench import Bench

LEAST = POLICY.min_prompt_tokens


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
def test_prompt_fills_a_step_up_to_the_target(decoding: int, stored: int) -> None:
    context = 50 * decoding
    tokens = StepBudget(learned(), 0.2).prompt_tokens(StepLoad(decoding, context, 512), stored)
    assert LEAST < tokens < 512
    assert seconds(decoding + tokens, context + context_cost(tokens, stored)) == pytest.approx(0.2, rel=0.1)


def test_first_prompts_teach_what_smaller_steps_take() -> None:
    """If every observed step exceeds the target, a small step is tried."""
    costs = StepCosts()
    for start in (0, 512):
        costs.observe(512, start, 0.3 + 0.02 * 512)
    budget = StepBudget(costs, 0.5)
    for _ in range(8):
        tokens = budget.prompt_tokens(StepLoad(1, 100, 512), 0)
        costs.observe(1 + tokens, 100, 0.3 + 0.02 * tokens)
    assert 0.3 + 0.02 * tokens <= 1.5


def test_prompts_are_unbounded_while_no_sequence_decodes() -> None:
    assert StepBudget(learned(), 0.05).prompt_tokens(StepLoad(0, 0, 512), 0) == 512


def test_prompts_are_unbounded_without_a_target_or_observations() -> None:
    assert StepBudget(learned(), None).prompt_tokens(StepLoad(4, 100, 512), 0) == 512
    assert StepBudget(StepCosts(), 0.05).prompt_tokens(StepLoad(4, 100, 512), 0) == 512


def test_prompts_get_half_of_a_step_that_exceeds_the_target_by_decoding_alone() -> None:
    tokens = StepBudget(learned(), 0.01).prompt_tokens(StepLoad(100, 4000, 512), 0)
    assert seconds(100 + tokens, 4000) == pytest.approx(2 * seconds(100, 4000), rel=0.1)


def test_every_step_makes_progress() -> None:
    crawl = StepCosts()
    for _ in range(20):
        crawl.observe(1, 0, 1.0)
        crawl.observe(2, 0, 50.0)
    assert StepBudget(crawl, 0.01).prompt_tokens(StepLoad(1, 0, 512), 0) == LEAST
    assert StepBudget(crawl, 0.01).prompt_tokens(StepLoad(1, 0, 3), 0) == 3


def test_step_accepts_any_token_budget() -> None:
    bench = Bench(budget=1 << 64, costs=learned(), decode_seconds=0.06)
    requests = [bench.add("a", 4, max_tokens=20)]
    bench.step()
    requests.append(bench.add("b", 40, seed=1, max_tokens=5))
    bench.run()
    bench.agrees(*requests)


@pytest.mark.parametrize("bound", [1e-9, 0.06, 0.1, None])
def test_steps_that_decode_keep_to_the_target_and_tokens_do_not_change(bound: float | None) -> None:
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
    """Return the largest number of sequences in a step, and all tokens."""
    costs = StepCosts()
    for step in range(400):
        rows = (1, 5, 10, 20, 40, 80)[step % 6]
        costs.observe(rows, 10 * rows, linear(rows))
    bench = Bench(num_pages=800, budget=64, max_sequences=40, costs=costs, decode_seconds=bound)
    requests = [bench.add(str(index), 2, seed=index, max_tokens=6) for index in range(60)]
    most = max(len(spans) for spans in bench.run())
    bench.agrees(*requests)
    return most, [bench.tokens(request.request_id) for request in requests]


def test_requests_wait_if_they_would_only_slow_the_others_down() -> None:
    free, tokens = crowded(None)
    assert free == 40
    for bound, sequences in ((1.0, 40), (0.05, 25), (0.03, 16), (0.001, 16)):
        most, same = crowded(bound)
        assert same == tokens
        assert most == pytest.approx(sequences, abs=2)
