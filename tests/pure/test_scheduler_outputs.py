"""Who is let in while pages are scarce: those that will find theirs to the end, as far as one can tell."""

from __future__ import annotations

import pytest

from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.cache.peak_pages import Growth, Holding, most_wanted
from ferrum.core.params import SamplingParams
from ferrum.core.types import FinishReason, Request, Sequence
from ferrum.scheduler.admission import Newcomers, OutputLengths
from ferrum.scheduler.sequence import begin
from scheduler_bench import Bench, lengths, stop_at

CONTEXT = 100
COUNT = 24


def choice(
    prompt: int,
    generated: int = 0,
    finish: FinishReason | None = None,
    *,
    max_tokens: int | None = None,
    stops: frozenset[int] = frozenset({9}),
) -> Sequence:
    params = SamplingParams(max_tokens=max_tokens)
    sequence = begin(Request("r", (1,) * prompt, params, seed=0, stop_token_ids=stops))[0]
    sequence.tokens += [2] * generated
    sequence.finish = finish
    return sequence


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
@pytest.mark.parametrize("num_pages", [9, 14, 20])
def test_where_all_ends_are_known_nobody_loses_its_pages(policy: str, num_pages: int) -> None:
    bench = Bench(num_pages=num_pages, policy=policy, budget=64)
    requests = [
        bench.add(f"r{index}", 3 + index % 7, seed=index, max_tokens=1 + index * 5 % 23, priority=index % 3)
        for index in range(20)
    ]
    bench.run()
    assert bench.scheduler.preemptions == 0
    bench.agrees(*requests)


def test_a_sequence_about_to_leave_lets_another_one_in_that_will_need_its_pages() -> None:
    bench = Bench(num_pages=6, budget=64)
    bench.add("short", 4, max_tokens=3)
    bench.add("long", 4, seed=1, max_tokens=17)
    assert lengths(bench.step()) == {"short/0": 4, "long/0": 4}, "8 tokens and 20 are more than 24 at their ends"
    bench.run()
    assert bench.scheduler.preemptions == 0


def test_one_that_would_not_find_its_pages_waits_until_it_does() -> None:
    bench = Bench(num_pages=6, budget=64)
    bench.add("a", 4, max_tokens=13)
    bench.add("b", 4, seed=1, max_tokens=13)
    assert lengths(bench.step()) == {"a/0": 4}
    bench.run()
    assert bench.scheduler.preemptions == 0


def test_one_that_is_served_first_is_let_in_at_the_cost_of_others() -> None:
    bench = Bench(num_pages=6, budget=64, policy="priority")
    requests = [bench.add("low", 4, max_tokens=13, priority=1)]
    bench.step()
    requests.append(bench.add("high", 4, seed=1, max_tokens=13))
    assert "high/0" in lengths(bench.step())
    bench.run()
    assert bench.end("low").preemptions == 1 and bench.end("high").preemptions == 0
    bench.agrees(*requests)


def test_limits_that_nobody_reaches_are_not_believed() -> None:
    bench = Bench(num_pages=10, budget=64, max_sequences=8)
    stop_at(bench, 2)
    bench.run()
    for index in range(4):
        bench.add(f"r{index}", 4, seed=index, max_tokens=30, stop_token_ids=frozenset({96}))
    bench.add("none can stop it", 4, seed=5, max_tokens=40)
    assert len(bench.step()) == 4


@pytest.mark.parametrize(
    ("ended", "asked", "to_come"),
    [
        ([], choice(5, max_tokens=20, stops=frozenset()), 20),
        ([8, 10, 12], choice(5, 15, max_tokens=20, stops=frozenset()), 5),
        ([], choice(95, max_tokens=20, stops=frozenset()), 5),
        ([], choice(5, max_tokens=20), 5),
        ([], choice(5), 5),
        ([], choice(90), 10),
        ([8, 10, 12], choice(5), 10),
        ([8, 10, 12], choice(5, max_tokens=3), 3),
        ([8, 10, 12], choice(5, 9), 1),
        ([8, 10, 12], choice(5, 12), 17),
        ([None, None, 10], choice(5, max_tokens=50), 10),
        ([None, None, 5], choice(5, 6, max_tokens=50), 11),
        ([None], choice(1, 1, max_tokens=50), 6),
        ([30, None], choice(5, 31, max_tokens=50), 19),
        ([None, 8, 10], choice(5, max_tokens=50), 8),
    ],
)
def test_an_output_becomes_as_long_as_those_that_got_as_far(
    ended: list[int | None], asked: Sequence, to_come: int
) -> None:
    outputs = OutputLengths()
    for generated in ended:
        outputs.learn(choice(1, generated or 7, FinishReason.STOP if generated else FinishReason.LENGTH))
    outputs.learn(choice(1, 40, FinishReason.ERROR))
    outputs.learn(choice(1, 0, FinishReason.ABORT))
    outputs.learn(choice(1, 60, FinishReason.LENGTH, max_tokens=60, stops=frozenset()))
    outputs.watch([])
    assert outputs.to_come(asked, CONTEXT) == to_come


def test_the_first_to_end_do_not_speak_for_those_that_still_run() -> None:
    """Two of five ended at 8 and 10: three fifths go on beyond 10, and nobody knows for how long."""
    outputs = OutputLengths()
    for generated in (8, 10):
        outputs.learn(choice(1, generated, FinishReason.STOP))
    outputs.watch([choice(1, 40), choice(1, 40), choice(1, 30), choice(1, 45, max_tokens=50, stops=frozenset())])
    assert [outputs.to_come(choice(1, generated), CONTEXT) for generated in (0, 9, 20)] == [10, 10, 21]
    outputs.watch([choice(1, 9)])
    assert outputs.to_come(choice(1), CONTEXT) == 10


def test_a_refusal_stands_until_somebody_leaves_or_a_page_becomes_free(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    fits = Newcomers.fits

    def noted(newcomers: Newcomers, newcomer: Sequence, gone: list[Sequence]) -> bool:
        asked.append(newcomer.cache_id)
        return fits(newcomers, newcomer, gone)

    monkeypatch.setattr(Newcomers, "fits", noted)
    bench = Bench(num_pages=6, budget=64)
    bench.add("a", 4, max_tokens=13)
    bench.add("b", 4, seed=1, max_tokens=13)
    steps = bench.run()
    begun = next(index for index, spans in enumerate(steps) if "b/0" in lengths(spans))
    assert steps[begun - 1][0].cache_id == "a/0" and len(steps) == 2 * begun, "as soon as the other one has left"
    assert asked == ["a/0", "b/0", "b/0"]


def test_the_most_that_is_wanted_is_wanted_just_before_an_end() -> None:
    def wanted(*holdings: tuple[int, int, int, int]) -> int:
        told = [Holding(Growth("", length, to_come), held, alone) for length, to_come, held, alone in holdings]
        return most_wanted(told, lambda tokens: -(-tokens // 4))

    assert wanted((4, 0, 1, 1)) == 0
    assert wanted((4, 8, 1, 1)) == 2
    assert wanted((4, 8, 1, 1), (4, 8, 1, 1)) == 4
    assert wanted((4, 8, 1, 1), (4, 12, 1, 1)) == 4, "at the end of the first; then there are its 3"
    assert wanted((4, 8, 1, 0), (4, 12, 1, 1)) == 4
    assert wanted((4, 1, 1, 0), (4, 12, 1, 1)) == 3, "what the first one shares does not come back"
    assert wanted((40, 1, 10, 10), (4, 12, 1, 1)) == 2, "one page each, and then there are ten"


def test_windows_want_no_more_than_they_see() -> None:
    pages = PageTable([PageGroup("main", 12, 4, 8)], max_draft=0)
    assert pages.reserve("a", 4)
    assert pages.lasts([Growth("a", 4, 1000)], 4)
    assert not PageTable([PageGroup("main", 4, 4, 8)], max_draft=0).reserve("a", 20)


@pytest.mark.parametrize("known", [True, False], ids=["limits", "stops"])
def test_a_quarter_of_the_pages_costs_as_much_as_letting_in_as_many_as_fit(known: bool) -> None:
    """In steps, and in tokens that are computed."""

    def served(num_pages: int, max_sequences: int) -> tuple[Bench, int, int]:
        bench = Bench(num_pages=num_pages, max_sequences=max_sequences, budget=64, context=400)
        stops = frozenset() if known else frozenset(range(4))
        requests = [
            bench.add(
                f"r{index}",
                12 + index * 7 % 25,
                seed=index,
                max_tokens=12 + index * 11 % 37 if known else 300,
                stop_token_ids=stops,
            )
            for index in range(COUNT)
        ]
        steps = bench.run(5000)
        bench.agrees(*requests, context=400)
        return bench, len(steps), sum(len(span.tokens) for spans in steps for span in spans)

    bench, _, _ = served(1000, COUNT)
    demand = sum(12 + index * 7 % 25 + len(bench.tokens(f"r{index}")) for index in range(COUNT))
    _, steps, tokens = served(1000, COUNT // 4)
    _, pressed_steps, pressed_tokens = served(demand // 4 // 4, COUNT)
    assert pressed_steps <= steps / 0.9
    assert pressed_tokens <= tokens * (1 if known else 1.1)
