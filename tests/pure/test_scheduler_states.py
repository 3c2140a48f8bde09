"""Prefixes, choices and admission of models whose sequences have states: the fake executor checks each state."""

from __future__ import annotations

from random import Random

import pytest

from ferrum.core.step import Inputs, Span
from ferrum.core.types import Adapter, FinishReason
from scheduler_bench import Bench

SLOTS = 40


def rows(steps: list[tuple[Span, ...]], request_id: str, below: int = 1000) -> int:
    """Return how many rows at positions below a limit ran for a request."""
    spans = [span for step in steps for span in step if span.cache_id.startswith(f"{request_id}/")]
    return sum(max(0, min(span.end, below) - span.start) for span in spans)


def cached(bench: Bench, request_id: str) -> int:
    return bench.end(request_id).cached_tokens


@pytest.mark.parametrize(
    ("length", "boundaries", "found"),
    [(30, (), 28), (30, (10, 27), 28), (30, (10, 29), 29), (33, (), 32), (3, (), 0), (3, (2,), 2), (200, (), 196)],
)
def test_the_first_repetition_begins_at_the_last_snapshot(length: int, boundaries: tuple[int, ...], found: int) -> None:
    bench = Bench(prefixes=True, slots=SLOTS, context=256, num_pages=200, budget=64)
    for name in "ab":
        request = bench.add(name, length, max_tokens=1, boundaries=boundaries)
        steps = bench.run()
        bench.agrees(request, context=256)
    assert cached(bench, "b") == found and rows(steps, "b") == length - found
    counts = bench.scheduler.prefix_counts
    assert (counts.snapshot_hits, counts.state_slots, counts.used_slots) == (found > 0, SLOTS, 0)


def test_a_prompt_begins_at_the_message_before_it_leaves_an_earlier_one() -> None:
    bench = Bench(prefixes=True, slots=SLOTS)
    first = bench.add("a", 40, max_tokens=4, boundaries=(9, 21, 33))
    bench.run()
    branch = (*first.prompt[:26], *range(14))
    second = bench.add_prompt("b", branch, max_tokens=4, boundaries=(9, 21, 35))
    bench.run()
    bench.agrees(first, second)
    assert cached(bench, "b") == 21


def test_an_answer_continues_from_its_end() -> None:
    bench = Bench(prefixes=True, slots=SLOTS)
    first = bench.add("a", 21, max_tokens=7)
    bench.run()
    second = bench.add_prompt("b", (*first.prompt, *bench.tokens("a"), 5, 6), max_tokens=2)
    bench.run()
    bench.agrees(first, second)
    assert cached(bench, "b") == 21 + 6


def test_long_prompts_that_part_anywhere_share_at_least_a_quarter() -> None:
    """Powers of two of pages are snapshots where messages are unknown."""
    bench = Bench(prefixes=True, slots=SLOTS, context=512, num_pages=400, budget=64)
    first = bench.add("a", 400, max_tokens=1)
    bench.run()
    for at in (70, 200, 300):
        bench.add_prompt(f"b{at}", (*first.prompt[:at], 1, 2, 3), max_tokens=1)
        bench.run()
        assert cached(bench, f"b{at}") >= at // 4


@pytest.mark.parametrize("prefixes", [False, True])
@pytest.mark.parametrize("max_sequences", [1, 2, 8])
def test_choices_share_their_prompt(prefixes: bool, max_sequences: int) -> None:
    bench = Bench(prefixes=prefixes, slots=2 * max_sequences + 4, max_sequences=max_sequences, context=80)
    request = bench.add("a", 60, n=4, max_tokens=5)
    steps = bench.run()
    bench.agrees(request, context=80)
    assert rows(steps, "a", below=60) <= 67


def test_choices_without_a_prefix_cache_share_a_prompt_with_messages() -> None:
    """Without it spans end at the shared length alone."""
    bench = Bench(slots=SLOTS, budget=64, context=80)
    request = bench.add("a", 60, n=3, max_tokens=2, boundaries=(5, 17, 40))
    steps = bench.run()
    bench.agrees(request, context=80)
    assert [(span.start, span.end) for span in steps[0]] == [(0, 59)]
    assert rows(steps, "a", below=60) == 62


def test_a_snapshot_before_a_window_that_lost_its_pages_is_not_begun_with() -> None:
    """The pages that 26 tokens need are still there, those that the snapshot after 12 needs are not."""
    bench = Bench(prefixes=True, slots=SLOTS, window=8, num_pages=12)
    first = bench.add("a", 40, max_tokens=1, boundaries=(12,))
    bench.run()
    bench.add("filler", 14, seed=1, max_tokens=1)
    bench.run()
    second = bench.add_prompt("b", first.prompt[:27], max_tokens=1)
    bench.run()
    bench.agrees(first, second)
    assert cached(bench, "b") == 0


def test_snapshots_after_given_rows_are_at_page_ends() -> None:
    bench = Bench(prefixes=True, slots=SLOTS)
    image = Inputs((9, 10), [None, None], b"digest")
    for name in "ab":
        bench.add(name, 30, max_tokens=1, boundaries=(11, 27), inputs=(image,))
        bench.run()
    assert cached(bench, "b") == 28
    bench.add("c", 13, max_tokens=1, inputs=(image,))
    bench.run()
    assert cached(bench, "c") == 0, "the snapshot after 11 tokens would not name the image"


def test_snapshots_name_the_adapters_of_their_tokens() -> None:
    bench = Bench(prefixes=True, slots=SLOTS)
    late = Adapter("x", b"x" * 32, 1.0, 10)
    for name, adapters, found in (("a", (late,), 0), ("b", (late,), 28), ("c", (), 0), ("d", (), 28)):
        bench.add(name, 30, max_tokens=1, boundaries=(12,), adapters=adapters)
        bench.run()
        assert cached(bench, name) == found or (name == "c" and cached(bench, name) <= 10)


def test_a_thousand_cancelled_requests_leave_no_slot() -> None:
    bench, pick = Bench(prefixes=True, slots=20, budget=24), Random(1)
    for number in range(1000):
        bench.add(f"r{number}", pick.randrange(1, 40), seed=pick.randrange(5), n=pick.choice((1, 3)), max_tokens=9)
        for _ in range(pick.randrange(4)):
            if bench.scheduler.has_work:
                bench.step()
        bench.take(bench.scheduler.abort(f"r{number}"))
    assert not bench.scheduler.has_work and bench.pages.free_slots == 20
    assert bench.scheduler.prefix_counts.used_slots == 0


@pytest.mark.parametrize("strangers", [0, 3, 6])
def test_sequences_wait_for_slots_and_none_starves(strangers: int) -> None:
    """Sequences outside the scheduler hold slots; the rest serve as many requests as they suffice for."""
    bench = Bench(slots=8, max_sequences=8, prefixes=True)
    for number in range(strangers):
        assert bench.pages.reserve(f"stranger {number}", 3)
        bench.pages.states.begin(f"stranger {number}", 0, 3)  # type: ignore[union-attr]
        bench.pages.commit(f"stranger {number}", 3)
    requests = [bench.add(f"r{number}", 10 + number, seed=number, max_tokens=6) for number in range(10)]
    running = 0
    while bench.scheduler.has_work:
        bench.step()
        running = max(running, bench.scheduler.num_running)
    bench.agrees(*requests)
    assert running == (8 - strangers) // 2


def test_a_request_for_which_others_hold_all_slots_is_refused() -> None:
    bench = Bench(slots=3, prefixes=True)
    for number in range(2):
        assert bench.pages.reserve(f"stranger {number}", 3)
        bench.pages.states.begin(f"stranger {number}", 0, 3)  # type: ignore[union-attr]
        bench.pages.commit(f"stranger {number}", 3)
    bench.add("a", 10, max_tokens=2)
    assert bench.scheduler.plan() is None
    (event,) = bench.scheduler.expire(0.0)
    assert event.finish_reason is FinishReason.ERROR and "pages or states" in str(event.error)
