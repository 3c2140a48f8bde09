"""Several choices of a request share its prompt and its log-probabilities."""

from __future__ import annotations

import tracemalloc

import pytest

from ferrum.core.errors import FerrumError, NonFiniteLogits
from ferrum.core.step import Span
from ferrum.core.types import FinishReason
from scheduler_bench import CONTEXT, Bench, lengths


@pytest.mark.parametrize("budget", [1, 3, 8, 64])
@pytest.mark.parametrize("n", [1, 3])
def test_first_event_has_all_prompt_logprobs(budget: int, n: int) -> None:
    bench = Bench(budget=budget)
    requests = [bench.add(f"r{length}", length, n=n, max_tokens=3, prompt_logprobs=1) for length in (1, 2, 9, 17)]
    bench.run()
    bench.agrees(*requests)
    for events in bench.events.values():
        assert all(event.prompt_logprobs is None for event in events[1:])


def test_prompt_logprobs_survive_preemption_without_recomputation() -> None:
    bench = Bench(num_pages=7, budget=6)
    requests = [bench.add(name, 13, seed=index, max_tokens=9, prompt_logprobs=0) for index, name in enumerate("ab")]
    targets = [len(span.score.targets) for spans in bench.run() for span in spans if span.score is not None]
    assert sum(targets) == 2 * 12
    bench.agrees(*requests)


def test_choices_share_the_prompt_and_run_its_last_token_each() -> None:
    bench = Bench(budget=64)
    request = bench.add("a", 14, n=4, max_tokens=5)
    assert lengths(bench.step()) == {"a/0": 14}
    assert lengths(bench.step()) == {"a/0": 1, "a/1": 1, "a/2": 1, "a/3": 1}
    assert bench.pages.shared == 3, "14 tokens: three full pages are shared, each choice has its partial page"
    bench.run()
    bench.agrees(request)
    assert len({bench.tokens("a", choice) for choice in range(4)}) == 4


def test_waiting_choices_share_one_prompt_list() -> None:
    bench = Bench(context=20_000, num_pages=5000)
    tracemalloc.start()
    try:
        bench.add("a", 10_000, n=128, max_tokens=2)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 1 << 20, "a list of it takes 80 kB"


@pytest.mark.parametrize("max_sequences", [1, 2])
def test_ending_choice_hands_its_prompt_to_a_waiting_one(max_sequences: int) -> None:
    bench = Bench(budget=64, max_sequences=max_sequences)
    request = bench.add("a", 14, n=5, max_tokens=1)
    computed = sum(len(span.tokens) for spans in bench.run() for span in spans)
    assert computed == 14 + 4
    bench.agrees(request)


def test_choices_compute_the_prompt_if_the_first_one_failed() -> None:
    failed: list[str] = []

    def fault(span: Span) -> FerrumError | None:
        if span.cache_id != "a/0" or span.start == 0:
            return None
        failed.append(span.cache_id)
        return NonFiniteLogits("nan")

    bench = Bench(budget=8, fault=fault)
    request = bench.add("a", 14, n=3, max_tokens=4)
    bench.run()
    assert failed == ["a/0"] and bench.end("a").finish_reason is FinishReason.ERROR
    for choice in (1, 2):
        assert bench.tokens("a", choice) == bench.executor.model.follow(request, choice, CONTEXT).tokens


def test_failed_choice_hands_its_prompt_to_none() -> None:
    bench = Bench(
        max_sequences=1, fault=lambda span: NonFiniteLogits("nan") if span.cache_id == "a/0" and span.start else None
    )
    request = bench.add("a", 6, n=2, max_tokens=4)
    spans = [span for spans in bench.run() for span in spans if span.cache_id == "a/1"]
    assert lengths(spans[:1]) == {"a/1": 6}
    assert bench.tokens("a", 1) == bench.executor.model.follow(request, 1, CONTEXT).tokens


def test_choices_that_wait_for_the_prompt_do_not_block_other_requests() -> None:
    bench = Bench(budget=8)
    requests = [bench.add("a", 12, n=2, max_tokens=3), bench.add("b", 3, seed=1, max_tokens=3)]
    bench.step()
    assert lengths(bench.step()) == {"a/0": 4, "b/0": 3}
    bench.run()
    bench.agrees(*requests)


def test_choices_continue_when_the_first_is_aborted() -> None:
    bench = Bench(budget=8)
    request = bench.add("a", 14, n=3, max_tokens=4)
    bench.step()
    bench.take(bench.scheduler.abort("a", choice=0))
    bench.run()
    assert bench.end("a").finish_reason is FinishReason.ABORT and bench.tokens("a") == ()
    for choice in (1, 2):
        assert bench.tokens("a", choice) == bench.executor.model.follow(request, choice, CONTEXT).tokens


def test_choices_with_a_window_share_the_pages_still_present() -> None:
    bench = Bench(window=5, max_sequences=2)
    request = bench.add("a", 14, n=3, max_tokens=30)
    bench.run()
    bench.agrees(request)
