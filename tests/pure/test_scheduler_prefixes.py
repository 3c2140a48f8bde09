"""Prefix sharing between requests."""

from __future__ import annotations

import pytest

from fakes import FakeModel
from ferrum.core.errors import FerrumError, NonFiniteLogits
from ferrum.core.step import Span
from ferrum.core.types import Adapter, FinishReason, Pooling
from scheduler_bench import CONTEXT, Bench, lengths


def cached(bench: Bench, request_id: str, choice: int = 0) -> int:
    return bench.events[request_id, choice][-1].cached_tokens


def computed(steps: list[tuple[Span, ...]], request_id: str) -> int:
    return sum(len(span.tokens) for spans in steps for span in spans if span.cache_id.startswith(request_id + "/"))


@pytest.mark.parametrize(("length", "found"), [(1, 0), (3, 2), (4, 3), (5, 4), (16, 15), (17, 16)])
def test_cached_prompt_computes_only_its_last_token(length: int, found: int) -> None:
    bench = Bench(prefixes=True)
    first = bench.add("a", length, max_tokens=1)
    bench.run()
    second = bench.add("b", length, max_tokens=1)
    assert lengths(bench.step()) == {"b/0": length - found}
    bench.run()
    bench.agrees(first, second)
    assert (cached(bench, "a"), cached(bench, "b")) == (0, found)
    counts = bench.scheduler.prefix_counts
    assert (counts.query_tokens, counts.hit_tokens) == (length + length if length > 1 else 0, found)


def test_no_prefix_is_found_without_the_option() -> None:
    bench = Bench()
    for name in "ab":
        bench.add(name, 20, max_tokens=1)
        assert computed(bench.run(), name) == 20
        assert cached(bench, name) == 0
    assert bench.scheduler.prefix_counts.query_tokens == 0


@pytest.mark.parametrize("budget", [5, 16, 64])
def test_simultaneous_requests_compute_a_common_prefix_once(budget: int) -> None:
    bench = Bench(prefixes=True, budget=budget, max_sequences=6, num_pages=100)
    requests = [bench.add(f"r{index}", 30, max_tokens=1 + index % 4) for index in range(12)]
    steps = bench.run()
    bench.agrees(*requests)
    prompts = sum(min(30, span.end) - span.start for spans in steps for span in spans if span.start < 30)
    assert prompts <= 30 + 11 * 2, "28 of the 30 tokens are in full pages"


def test_prefix_waiters_resume_when_the_owner_ends() -> None:
    bench = Bench(prefixes=True, budget=8)
    for name in "ab":
        bench.add(name, 30, max_tokens=2)
    assert lengths(bench.step()) == {"a/0": 8}
    bench.take(bench.scheduler.abort("a"))
    assert lengths(bench.step()) == {"b/0": 8}
    bench.run()


def test_higher_priority_prompts_come_first() -> None:
    bench = Bench(budget=8, policy="priority")
    requests = [bench.add("low", 30, priority=2, max_tokens=2)]
    bench.step()
    requests.append(bench.add("high", 10, seed=1, priority=1, max_tokens=2))
    assert [lengths(bench.step()) for _ in range(2)] == [{"high/0": 8}, {"high/0": 2, "low/0": 6}]
    bench.run()
    bench.agrees(*requests)


def test_higher_priority_does_not_wait_for_a_prefix_of_lower_priority() -> None:
    bench = Bench(prefixes=True, budget=16, policy="priority")
    bench.add("low", 30, priority=2, max_tokens=1)
    assert lengths(bench.step()) == {"low/0": 16}
    bench.add("high", 30, priority=1, max_tokens=1)
    bench.add("equal", 30, priority=2, max_tokens=1)
    assert lengths(bench.step()) == {"high/0": 16}
    bench.run()
    assert (cached(bench, "high"), cached(bench, "equal")) == (0, 29)


def test_generated_tokens_are_found_by_the_next_message_of_a_conversation() -> None:
    bench = Bench(prefixes=True)
    request = bench.add("a", 10, max_tokens=12)
    bench.run()
    answer = FakeModel().follow(request, 0, CONTEXT).tokens
    turn = (*request.prompt, *answer, 1, 2, 3)
    bench.add_prompt("b", turn, max_tokens=1)
    bench.run()
    assert cached(bench, "b") == 21, "all except the answer's last token, which was never stored"


@pytest.mark.parametrize("owner", [{"tenant": "t"}, {"salt": "s"}, {"adapters": (Adapter("x", b"x"),)}])
def test_prefixes_are_separate_by_tenant_salt_and_adapter(owner: dict[str, object]) -> None:
    bench = Bench(prefixes=True)
    bench.add("a", 20, max_tokens=1)
    bench.run()
    bench.add("b", 20, max_tokens=1, **owner)
    bench.run()
    bench.add("c", 20, max_tokens=1, **owner)
    bench.run()
    assert (cached(bench, "b"), cached(bench, "c")) == (0, 19)


@pytest.mark.parametrize("whole", [{"prompt_logprobs": 1}, {"pooling": Pooling.MEAN, "max_tokens": 0}])
def test_requests_that_need_every_row_use_no_prefix_but_publish_theirs(whole: dict[str, object]) -> None:
    bench = Bench(prefixes=True, budget=64)
    options = {"max_tokens": 1, **whole}
    for name in "ab":
        bench.add(name, 20, **options)
        assert computed(bench.run(), name) == 20
    bench.add("c", 20, max_tokens=1)
    bench.run()
    assert (cached(bench, "b"), cached(bench, "c")) == (0, 19)


def test_sequence_that_fails_before_its_first_token_publishes_nothing() -> None:
    def fault(span: Span) -> FerrumError | None:
        return NonFiniteLogits("nan") if span.cache_id == "a/0" and span.end == 20 else None

    bench = Bench(prefixes=True, budget=8, fault=fault)
    bench.add("a", 20, max_tokens=1)
    bench.run()
    assert bench.events["a", 0][-1].finish_reason is FinishReason.ERROR
    second = bench.add("b", 20, max_tokens=1)
    bench.run()
    assert cached(bench, "b") == 0
    bench.agrees(second)


def test_preempted_sequence_recomputes_only_evicted_pages() -> None:
    bench = Bench(prefixes=True, num_pages=12, budget=64, overcommitted=True)
    requests = [bench.add(name, 16, seed=index, max_tokens=16) for index, name in enumerate("ab")]
    steps = bench.run()
    bench.agrees(*requests)
    assert bench.scheduler.preemptions >= 1
    assert computed(steps, "b") < 16 + 15 + 16, "not from the start"
    assert cached(bench, "b") == 0, "the first time, nothing was cached"


def test_preempted_choice_finds_its_own_pages_again() -> None:
    """The other choices only have the prompt."""
    bench = Bench(prefixes=True, policy="fair", max_sequences=2)
    requests = [bench.add("a", 8, n=2, max_tokens=20, tenant="x")]
    for _ in range(13):
        bench.step()
    requests.append(bench.add("b", 5, seed=1, max_tokens=3, tenant="y"))
    steps = bench.run()
    bench.agrees(*requests)
    assert bench.scheduler.preemptions == 1
    assert min(span.start for spans in steps for span in spans if span.cache_id == "a/1") == 19


def test_choices_use_the_prompt_of_an_earlier_request() -> None:
    bench = Bench(prefixes=True, budget=64)
    bench.add("a", 20, max_tokens=1)
    bench.run()
    request = bench.add("b", 20, n=3, max_tokens=4)
    assert lengths(bench.step()) == {f"b/{choice}": 1 for choice in range(3)}
    bench.run()
    bench.agrees(request)
    assert {cached(bench, "b", choice) for choice in range(3)} == {19}


def test_pool_full_of_idle_prefixes_still_serves() -> None:
    bench = Bench(prefixes=True, num_pages=8, budget=64)
    for seed in range(6):
        request = bench.add(f"r{seed}", 28, seed=seed, max_tokens=2)
        bench.run()
        bench.agrees(request)
    assert bench.scheduler.kv_usage == 0 and bench.scheduler.preemptions == 0
    assert bench.scheduler.prefix_counts.evicted_pages > 20


def test_forks_of_a_long_context_take_one_page_and_compute_one_token() -> None:
    bench = Bench(prefixes=True, num_pages=600, budget=4096, max_sequences=64, context=2100)
    bench.add("context", 2002, max_tokens=2)
    bench.run()
    for index in range(64):
        bench.add(f"fork{index}", 2002, max_tokens=2)
    spans = bench.step()
    assert len(spans) == 64 and {len(span.tokens) for span in spans} == {1}
    assert round(bench.scheduler.kv_usage * 600) == 500 + 64
    bench.run()


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_continuation_from_within_a_page_computes_only_new_tokens(kept: int) -> None:
    bench = Bench(prefixes=True, budget=64)
    request = bench.add("a", 9, max_tokens=7)
    bench.run()
    spoken = (*request.prompt, *bench.tokens("a"))
    turns = [bench.add_prompt("on", (*spoken, 1, 2), max_tokens=3)]
    assert lengths(bench.step()) == {"on/0": 3}, "the last token, which was never stored, and the new ones"
    bench.run()
    back = bench.add_prompt("back", (*spoken[: 12 + kept], 96), max_tokens=1)
    assert lengths(bench.step()) == {"back/0": 1}
    bench.run()
    bench.agrees(*turns, back)


def test_every_fork_finds_its_partial_page_again() -> None:
    bench = Bench(prefixes=True, budget=64)
    bench.add("base", 9, max_tokens=2)
    bench.run()
    forks = [bench.add_prompt(f"fork{index}", (*range(9), 50 + index), max_tokens=2) for index in range(5)]
    bench.run()
    for index, fork in enumerate(forks):
        on = bench.add_prompt(f"on{index}", (*fork.prompt, *bench.tokens(f"fork{index}"), 7), max_tokens=1)
        assert lengths(bench.step()) == {f"on{index}/0": 2}
        bench.run()
        bench.agrees(fork, on)


def test_page_is_recomputed_if_its_copy_has_no_room() -> None:
    bench = Bench(prefixes=True, num_pages=3, budget=64)
    first = bench.add("a", 10, max_tokens=2)
    bench.run()
    second = bench.add("b", 10, max_tokens=2)
    assert lengths(bench.step()) == {"b/0": 2}
    bench.run()
    bench.agrees(first, second)
