"""Ends of requests: refused, length, stop token, error, abort, deadline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ferrum.core.errors import ContextOverflow, FerrumError, KvExhausted, NonFiniteLogits, RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.step import Want
from ferrum.core.types import FinishReason, Request
from ferrum.scheduler.queues import POLICIES, SPARE_DEADLINES, LiveRequests
from ferrum.scheduler.sequence import CountedTokens, begin, judge
from scheduler_bench import CONTEXT, Bench, stop_at


def test_prompt_beyond_the_context_or_the_pool_is_refused() -> None:
    bench = Bench(num_pages=4, context=40)
    with pytest.raises(ContextOverflow) as caught:
        bench.add("a", 40)
    assert caught.value.param == "prompt"
    with pytest.raises(KvExhausted):
        bench.add("b", 17)
    with pytest.raises(RequestError):
        bench.add("c", 0)
    assert not bench.scheduler.has_work
    request = bench.add("d", 16, max_tokens=1)
    bench.run()
    bench.agrees(request, context=40)


def test_live_request_id_is_refused_and_an_ended_one_accepted() -> None:
    bench = Bench()
    bench.add("a", 3, max_tokens=2)
    with pytest.raises(RequestError) as caught:
        bench.add("a", 3)
    assert caught.value.param == "request_id"
    bench.run()
    bench.events.clear()
    request = bench.add("a", 3, max_tokens=2)
    bench.run()
    bench.agrees(request)


def test_context_ends_a_sequence_without_other_bounds() -> None:
    bench = Bench(context=20)
    request = bench.add("a", 5, max_tokens=None)
    bench.run()
    assert len(bench.tokens("a")) == 15 and bench.end("a").finish_reason is FinishReason.LENGTH
    bench.agrees(request, context=20)


def test_full_pool_smaller_than_the_context_ends_a_sequence() -> None:
    bench = Bench(num_pages=4)
    bench.add("a", 5, max_tokens=None)
    bench.run()
    assert len(bench.tokens("a")) == 16 + 1 - 5, "the last token needs no room"
    assert bench.end("a").finish_reason is FinishReason.LENGTH


def test_stop_token_ends_the_choice_and_is_its_stop_reason() -> None:
    bench = Bench()
    request = stop_at(bench, 5)
    bench.run()
    bench.agrees(request)
    (stop,) = request.stop_token_ids
    assert bench.tokens("a")[-1] == stop == bench.end("a").stop_reason and len(bench.tokens("a")) <= 6


def test_eos_token_has_no_stop_reason() -> None:
    bench = Bench()
    request = stop_at(bench, 5)
    assert bench.scheduler.abort("a")
    bench.events.clear()
    request = replace(request, request_id="b", eos_token_ids=tuple(request.stop_token_ids))
    bench.scheduler.add(request)
    bench.run()
    assert bench.end("b").finish_reason is FinishReason.STOP and bench.end("b").stop_reason is None


def test_stop_token_before_min_tokens_is_ignored() -> None:
    bench = Bench()
    request = stop_at(bench, 2, min_tokens=8)
    bench.run()
    bench.agrees(request)
    assert len(bench.tokens("a")) > 8


def test_scoring_generates_no_token() -> None:
    bench = Bench(budget=8)
    request = bench.add("a", 30, max_tokens=0, prompt_logprobs=1)
    full = bench.add("b", CONTEXT, max_tokens=0, prompt_logprobs=1)
    assert all(span.want is Want.NONE for spans in bench.run() for span in spans)
    bench.agrees(request, full)
    assert len(bench.events["a", 0]) == 1 and bench.end("a").finish_reason is FinishReason.LENGTH


def test_error_of_a_span_ends_only_its_choice() -> None:
    error = NonFiniteLogits("nan")
    bench = Bench(fault=lambda span: error if span.cache_id == "b/0" and span.start == 6 else None)
    requests = [bench.add(name, 4, seed=index, max_tokens=6) for index, name in enumerate("abc")]
    bench.run()
    bench.agrees(requests[0], requests[2])
    assert bench.end("b").finish_reason is FinishReason.ERROR and bench.end("b").error is error
    assert bench.tokens("b") == bench.executor.model.follow(requests[1], 0, CONTEXT).tokens[:3]


def test_failed_step_ends_only_its_sequences() -> None:
    bench = Bench(max_sequences=2)
    requests = [bench.add(name, 4, seed=index, max_tokens=3) for index, name in enumerate("abc")]
    error = NonFiniteLogits("the step broke")
    bench.take(bench.scheduler.fail(bench.plan(), error))
    assert [bench.end(name).error for name in "ab"] == [error, error]
    bench.run()
    bench.agrees(requests[2])


def test_abort_ends_all_choices_and_frees_their_pages() -> None:
    bench = Bench()
    bench.add("a", 8, n=3, max_tokens=9, trace_id="t")
    for _ in range(3):
        bench.step()
    bench.take(bench.scheduler.abort("a"))
    assert [bench.end("a", choice).finish_reason for choice in range(3)] == [FinishReason.ABORT] * 3
    assert bench.end("a").trace_id == "t"
    assert bench.pages.used == 0 and not bench.scheduler.has_work and bench.scheduler.plan() is None
    assert bench.scheduler.abort("a") == [] == bench.scheduler.abort("unknown")


def test_sequence_ended_in_flight_keeps_its_pages_until_commit() -> None:
    bench = Bench()
    bench.add("a", 8, max_tokens=9)
    bench.step()
    plan = bench.plan()
    bench.take(bench.scheduler.abort("a"))
    assert bench.pages.used > 0
    with pytest.raises(RequestError):
        bench.add("a", 3)
    bench.commit(plan)
    assert bench.pages.used == 0 and not bench.scheduler.has_work and len(bench.events["a", 0]) == 2


def test_deadline_ends_running_and_waiting_requests() -> None:
    bench = Bench(max_sequences=1)
    for name, deadline in (("runs", 5.0), ("waits", 5.0), ("later", 9.0), ("never", None)):
        bench.add(name, 4, max_tokens=20, deadline=deadline)
    bench.step()
    assert bench.scheduler.expire(4.9) == []
    bench.take(bench.scheduler.expire(5.0))
    assert {name for name, _ in bench.events if bench.end(name).finish_reason is FinishReason.DEADLINE} == {
        "runs",
        "waits",
    }
    assert bench.pages.used == 0
    bench.run()
    assert bench.scheduler.expire(99.0) == []


def test_deadline_ends_with_its_request() -> None:
    bench = Bench()
    bench.add("a", 4, max_tokens=20, deadline=5.0)
    bench.scheduler.abort("a")
    bench.add("a", 4, max_tokens=3)
    assert bench.scheduler.expire(6.0) == []


def test_deadlines_of_ended_requests_do_not_accumulate() -> None:
    live = LiveRequests(POLICIES["fcfs"])
    request = Bench().add("a", 4, max_tokens=2, deadline=1e9)
    for number in range(3000):
        (choice,) = live.add(replace(request, request_id=str(number), deadline=1e9 - number))
        if number % 100:
            live.remove(choice)
    assert len(live) == 30 and len(live._deadlines) <= 2 * 30 + SPARE_DEADLINES + 1
    assert live.due(1e9) == [str(number) for number in reversed(range(0, 3000, 100))]


@pytest.mark.parametrize("cause", [FinishReason.ABORT, NonFiniteLogits("dead")])
def test_drain_ends_every_choice_with_one_terminal_event(cause: FinishReason | FerrumError) -> None:
    bench = Bench(max_sequences=2)
    for index, name in enumerate("abc"):
        bench.add(name, 4, seed=index, n=2, max_tokens=9)
    bench.step()
    bench.take(bench.scheduler.drain(cause))
    assert len(bench.events) == 6 and not bench.scheduler.has_work and bench.pages.used == 0
    for name, choice in tuple(bench.events):
        end = bench.end(name, choice)
        expected = FinishReason.ERROR if isinstance(cause, FerrumError) else cause
        assert end.finish_reason is expected and end.error is (cause if isinstance(cause, FerrumError) else None)


def test_request_ends_with_an_error_if_other_owners_hold_the_pages() -> None:
    bench = Bench(num_pages=8)
    assert bench.pages.reserve("other", 24)
    bench.add("big", 12, max_tokens=2)
    bench.add("growing", 7, seed=1, max_tokens=5)
    while bench.scheduler.has_work:
        plan = bench.scheduler.plan()
        if plan is not None:
            bench.commit(plan)
        bench.take(bench.scheduler.expire(0.0))
    for name in ("big", "growing"):
        assert bench.end(name).finish_reason is FinishReason.ERROR
        assert isinstance(bench.end(name).error, KvExhausted)
    assert bench.pages.ids() == ("other",)


@pytest.mark.parametrize(
    ("sampled", "context", "outcome"),
    [
        ((1, 2), 99, CountedTokens((1, 2))),
        ((1, 2, 3, 4), 99, CountedTokens((1, 2, 3), FinishReason.LENGTH)),
        ((1, 2, 3), 4, CountedTokens((1, 2), FinishReason.LENGTH)),
        ((7, 7, 1), 99, CountedTokens((7, 7), FinishReason.STOP, 7)),
        ((1, 8, 1), 99, CountedTokens((1, 8), FinishReason.STOP, None)),
        ((1, 2, 7), 99, CountedTokens((1, 2, 7), FinishReason.STOP, 7)),
    ],
)
def test_tokens_after_the_end_are_discarded(sampled: tuple[int, ...], context: int, outcome: CountedTokens) -> None:
    request = Request(
        "a", (0, 0), SamplingParams(max_tokens=3, min_tokens=1), 0, stop_token_ids=frozenset({7, 8}), eos_token_ids=(8,)
    )
    assert judge(begin(request)[0], sampled, context) == outcome
