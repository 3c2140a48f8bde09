"""Plans of the scheduler: budgets, order, preemption."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.core.errors import RequestError
from ferrum.core.step import FinishedStep, Want
from ferrum.scheduler.queues import POLICIES, WaitingQueue
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.sequence import Sequence as Choice
from ferrum.scheduler.step_plan import StepPlan
from scheduler_bench import Bench, lengths


def test_one_request_runs_to_its_length() -> None:
    bench = Bench()
    request = bench.add("a", 5, max_tokens=6)
    assert len(bench.run()) == 6, "the step that completes the prompt samples"
    bench.agrees(request)


def test_long_prompt_is_chunked_and_only_the_last_chunk_samples() -> None:
    bench = Bench(budget=8)
    request = bench.add("a", 20, max_tokens=1)
    wants = [(len(span.tokens), span.want) for (span,) in bench.run()]
    assert wants == [(8, Want.NONE), (8, Want.NONE), (4, Want.TOKEN)]
    bench.agrees(request)


def test_step_mixes_decodes_and_chunks_within_the_budget_decodes_first() -> None:
    bench = Bench(budget=8)
    requests = [bench.add("long", 30, max_tokens=3), bench.add("short", 3, seed=1, max_tokens=20)]
    for _ in range(4):
        bench.step()
    assert lengths(bench.step()) == {"long/0": 1, "short/0": 1}
    requests.append(bench.add("late", 30, seed=2, max_tokens=2))
    assert lengths(bench.step()) == {"long/0": 1, "short/0": 1, "late/0": 6}
    assert lengths(bench.step()) == {"short/0": 1, "late/0": 7}
    assert all(sum(lengths(spans).values()) <= 8 for spans in bench.run())
    bench.agrees(*requests)


def test_prompt_of_higher_priority_does_not_delay_decoding() -> None:
    bench = Bench(budget=8, policy="priority")
    bench.add("decodes", 3, priority=1, max_tokens=20)
    bench.step()
    bench.add("prompt", 30, seed=1, max_tokens=2)
    assert [lengths(bench.step()) for _ in range(3)] == [{"decodes/0": 1, "prompt/0": 7}] * 3


def test_max_sequences_bounds_running_sequences() -> None:
    bench = Bench(max_sequences=2)
    requests = [bench.add(f"r{index}", 3, seed=index, max_tokens=4) for index in range(5)]
    assert bench.scheduler.num_waiting == 5
    bench.step()
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (2, 3)
    assert max(len(spans) for spans in bench.run()) == 2
    bench.agrees(*requests)


def test_small_request_does_not_overtake_one_that_waits_for_pages() -> None:
    bench = Bench(num_pages=8)
    bench.add("running", 16, max_tokens=8)
    bench.step()
    bench.add("big", 20, seed=1, max_tokens=2)
    bench.add("small", 1, seed=2, max_tokens=2)
    order = [span.cache_id for spans in bench.run() for span in spans]
    assert order.index("big/0") < order.index("small/0")


def test_fcfs_serves_by_arrival_then_in_the_order_added() -> None:
    bench = Bench(max_sequences=1)
    for name, arrival in (("late", 2.0), ("early", 1.0), ("early too", 1.0)):
        bench.add(name, 2, arrival=arrival, priority=-5 if name == "late" else 0, max_tokens=2)
    bench.run()
    assert list(bench.events) == [("early", 0), ("early too", 0), ("late", 0)]


def test_priority_serves_smaller_values_first_then_by_arrival() -> None:
    bench = Bench(max_sequences=1, policy="priority")
    for name, priority, arrival in (("c", 1, 0.0), ("b", 0, 2.0), ("a", 0, 1.0)):
        bench.add(name, 2, priority=priority, arrival=arrival, max_tokens=2)
    bench.run()
    assert [name for name, _ in bench.events] == ["a", "b", "c"]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_lack_of_pages_preempts_the_sequence_served_last(policy: str) -> None:
    bench = Bench(num_pages=9, policy=policy, overcommitted=True)
    requests = [
        bench.add(name, 8, seed=index, max_tokens=20, priority=-index, arrival=float(index))
        for index, name in enumerate("abc")
    ]
    sequences: dict[str, Choice] = {}
    while bench.scheduler.has_work:
        plan = bench.plan()
        sequences |= {sequence.request.request_id: sequence for sequence in plan.sequences}
        bench.commit(plan)
    bench.agrees(*requests)
    served_first, served_last = ("a", "c") if policy == "fcfs" else ("c", "a")
    assert sequences[served_first].preemptions == 0 < sequences[served_last].preemptions
    assert bench.pages.used == 0


def test_first_sequence_waits_for_pages_in_flight_and_is_not_preempted() -> None:
    bench = Bench(num_pages=4, overcommitted=True)
    requests = [bench.add(name, 7, seed=seed, max_tokens=4) for seed, name in enumerate("ab")]
    bench.step()
    decode = bench.plan()
    assert lengths(decode.batch.spans) == {"a/0": 1, "b/0": 1}
    assert bench.scheduler.plan() is None, "the ninth token of a needs a page, and b is in flight"
    bench.commit(decode)
    assert lengths(bench.step()) == {"a/0": 1}
    assert [sequence.preemptions for sequence in decode.sequences] == [0, 1]
    bench.run()
    bench.agrees(*requests)


def test_preempted_sequence_keeps_its_tokens_and_recomputes_them() -> None:
    bench = Bench(num_pages=6, budget=64, overcommitted=True)
    requests = [bench.add(name, 10, seed=index, max_tokens=12) for index, name in enumerate("ab")]
    again = [span for spans in bench.run() for span in spans if span.start == 0 and len(span.tokens) > 10]
    assert again and all(span.want is Want.TOKEN for span in again)
    bench.agrees(*requests)


def test_commit_may_follow_the_next_plan() -> None:
    bench = Bench(budget=4, num_pages=12)
    requests = [bench.add(name, 5, seed=index, max_tokens=9) for index, name in enumerate("abcd")]
    behind: list[tuple[StepPlan, FinishedStep]] = []
    while bench.scheduler.has_work:
        plan = bench.scheduler.plan()
        submitted = [] if plan is None else [(plan, bench.executor.submit(plan.batch))]
        for earlier, step in behind:
            bench.take(bench.scheduler.commit(earlier, step.result()))
            bench.pages.check()
        behind = submitted
    bench.agrees(*requests)
    assert bench.pages.used == 0


@pytest.mark.parametrize("field", ["max_tokens_per_step", "max_sequences"])
def test_bounds_below_one_are_refused(field: str) -> None:
    bounds: dict[str, Any] = {"max_tokens_per_step": 4, "max_sequences": 4, "max_sequence_length": 4, field: 0}
    with pytest.raises(RequestError) as caught:
        Scheduler(PageTable([PageGroup("main", 4, 4)]), policy=POLICIES["fcfs"], **bounds)
    assert caught.value.param == field


@pytest.mark.parametrize("tenants", [1, 500])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_steps_do_not_scan_a_long_queue(policy: str, tenants: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences behind the first one that does not fit are not visited."""
    looked = 0
    rounds = WaitingQueue.rounds

    def counted(*arguments: Any) -> Iterator[Choice]:
        nonlocal looked
        for sequence in rounds(*arguments):
            looked += 1
            yield sequence

    monkeypatch.setattr(WaitingQueue, "rounds", counted)
    bench = Bench(policy=policy, max_sequences=2)
    for index in range(500):
        bench.add(f"r{index}", 6, seed=index, max_tokens=20, tenant=f"t{index % tenants}")
    bench.step()
    looked = 0
    for _ in range(10):
        bench.step()
    assert looked <= 20


def test_chunks_shrink_to_what_a_window_group_holds() -> None:
    bench = Bench(num_pages=7, window=8, budget=16, max_sequences=1)
    request = bench.add("a", 50, max_tokens=10)
    assert max(len(span.tokens) for spans in bench.run() for span in spans) == 8
    bench.agrees(request)
