"""Admission while pages are scarce."""

from __future__ import annotations

import pytest

from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.core.params import SamplingParams
from ferrum.core.policy_config import POLICY
from ferrum.core.types import Request
from ferrum.scheduler.admission import Admission, growth_reserve
from ferrum.scheduler.sequence import Sequence, begin
from scheduler_bench import Bench, lengths

CONTEXT = 1000
COUNT = 24


def choice(prompt: int, generated: int = 0, *, max_tokens: int | None = None, stops: bool = True) -> Sequence:
    stop_token_ids = frozenset({9}) if stops else frozenset[int]()
    params = SamplingParams(max_tokens=max_tokens)
    sequence = begin(Request("r", (1,) * prompt, params, seed=0, stop_token_ids=stop_token_ids))[0]
    sequence.tokens += [2] * generated
    return sequence


@pytest.mark.parametrize(
    ("sequence", "reserve"),
    [
        (choice(5, max_tokens=20, stops=False), 10),
        (choice(5, 15, max_tokens=20, stops=False), 2),
        (choice(995, max_tokens=20, stops=False), 2),
        (choice(5, max_tokens=20), 2),
        (choice(50, max_tokens=20), 20),
        (choice(50), 25),
        (choice(500, max_tokens=400), POLICY.admission_growth),
        (choice(400, 100), POLICY.admission_growth),
        (choice(990), 10),
    ],
)
def test_reserve_is_bounded_by_the_limit_and_the_length_of_the_sequence(sequence: Sequence, reserve: int) -> None:
    assert growth_reserve(sequence, CONTEXT) == reserve


def test_waiting_request_is_refused_while_the_growth_of_others_needs_the_pages() -> None:
    bench = Bench(num_pages=6, budget=64)
    bench.add("a", 12, max_tokens=8, stop_token_ids=frozenset({96}))
    bench.add("b", 12, seed=1, max_tokens=8, stop_token_ids=frozenset({96}))
    assert lengths(bench.step()) == {"a/0": 12}
    bench.run()
    assert bench.scheduler.preemptions == 0


def test_higher_priority_is_admitted_and_preempts_lower_ones() -> None:
    bench = Bench(num_pages=6, budget=64, policy="priority")
    requests = [bench.add("low", 4, max_tokens=13, priority=1)]
    bench.step()
    requests.append(bench.add("high", 4, seed=1, max_tokens=13))
    assert "high/0" in lengths(bench.step())
    bench.run()
    assert bench.end("low").preemptions == 1 and bench.end("high").preemptions == 0
    bench.agrees(*requests)


def test_refusal_stands_until_a_sequence_leaves_or_a_page_becomes_free(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    fits = Admission.fits

    def counted(admission: Admission, waiting: Sequence, gone: list[Sequence]) -> bool:
        asked.append(waiting.cache_id)
        return fits(admission, waiting, gone)

    monkeypatch.setattr(Admission, "fits", counted)
    bench = Bench(num_pages=6, budget=64)
    for seed, name in enumerate("ab"):
        bench.add(name, 12, seed=seed, max_tokens=8, stop_token_ids=frozenset({96}))
    steps = bench.run()
    begun = next(index for index, spans in enumerate(steps) if "b/0" in lengths(spans))
    assert "a/0" in lengths(steps[begun - 1]) and "a/0" not in lengths(steps[begun]), "as soon as the first has ended"
    assert asked == ["a/0", "b/0", "b/0"]


def test_window_groups_need_no_more_pages_than_the_window() -> None:
    pages = PageTable([PageGroup("main", 12, 4, 8)], max_draft=0)
    assert pages.reserve("a", 4) and pages.reserve("b", 4)
    assert pages.can_grow({"a": 1000}, 4)
    assert not pages.can_grow({"a": 1000, "b": 1000}, 20)


def test_pages_of_released_sequences_count_as_free_unless_shared() -> None:
    pages = PageTable([PageGroup("main", 4, 4)])
    assert pages.reserve("a", 8) and pages.reserve("b", 8)
    pages.commit("a", 8)
    assert pages.can_grow({"b": 16}, 4, ("a",)) and not pages.can_grow({"b": 20}, 4, ("a",))
    pages.fork("a", "c")
    assert not pages.can_grow({"b": 12}, 4, ("a",)) and pages.can_grow({"b": 16}, 4, ("a", "c"))


@pytest.mark.parametrize("known", [True, False], ids=["limits", "stops"])
def test_contended_pool_costs_little_compared_to_a_fitting_batch(known: bool) -> None:
    """A pool for a quarter of the demand takes nearly the steps and tokens of an ample pool with a quarter running."""

    def served(num_pages: int, max_sequences: int) -> tuple[Bench, int, int]:
        bench = Bench(num_pages=num_pages, max_sequences=max_sequences, budget=64, context=400)
        stops = frozenset[int]() if known else frozenset(range(4))
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
    assert pressed_steps <= steps / 0.75
    assert pressed_tokens <= 1.25 * tokens
