"""What the scheduler promises, one promise a test, on the fake executor: its tokens come from the pages themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fakes import FakeExecutor, FinishedStep
from ferrum.cache.pages import PageGroup, PageTable
from ferrum.core.errors import ContextOverflow, FerrumError, KvExhausted, NonFiniteLogits, RequestError
from ferrum.core.params import SamplingParams
from ferrum.core.step import Rows, Span, Want
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.core.types import Sequence as Choice
from ferrum.scheduler.plan import Plan
from ferrum.scheduler.policy import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.sequence import Outcome, begin, judge

CONTEXT = 64


class Bench:
    """A scheduler, a fake executor and the events so far."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        window: int | None = None,
        policy: str = "fcfs",
        budget: int = 16,
        max_sequences: int = 8,
        context: int = CONTEXT,
        propose: Callable[[Choice], tuple[int, ...]] | None = None,
        fault: Callable[[Span], FerrumError | None] | None = None,
    ) -> None:
        self.pages = PageTable([PageGroup("main", num_pages, 4, window)], max_draft=4)
        self.executor = FakeExecutor(self.pages, fault=fault)
        self.scheduler = Scheduler(
            self.pages,
            policy=POLICIES[policy],
            max_tokens_per_step=budget,
            max_sequences=max_sequences,
            max_sequence_length=context,
            propose=propose,
        )
        self.events: dict[tuple[str, int], list[TokenEvent]] = defaultdict(list)

    def add(self, request_id: str, length: int, *, seed: int = 0, **options: Any) -> Request:
        fields = {name: options.pop(name) for name in tuple(options) if name in Request.__dataclass_fields__}
        prompt = tuple((seed * 31 + position * 7) % 97 for position in range(length))
        request = Request(request_id, prompt, SamplingParams(**options), seed, **fields)
        self.scheduler.add(request)
        return request

    def take(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            assert all(earlier.finish_reason is None for earlier in self.events[event.request_id, event.choice])
            self.events[event.request_id, event.choice].append(event)

    def plan(self) -> Plan:
        plan = self.scheduler.plan()
        assert plan is not None
        return plan

    def commit(self, plan: Plan) -> None:
        self.take(self.scheduler.commit(plan, self.executor.submit(plan.batch).result()))
        self.pages.check()

    def step(self) -> tuple[Span, ...]:
        plan = self.plan()
        self.commit(plan)
        return plan.batch.spans

    def run(self, most: int = 1000) -> list[tuple[Span, ...]]:
        steps = []
        while self.scheduler.has_work:
            assert len(steps) < most, "no progress"
            steps.append(self.step())
        assert self.pages.used == 0 and self.pages.ids() == ()
        return steps

    def tokens(self, request_id: str, choice: int = 0) -> tuple[int, ...]:
        return tuple(token for event in self.events[request_id, choice] for token in event.token_ids)

    def end(self, request_id: str, choice: int = 0) -> TokenEvent:
        return self.events[request_id, choice][-1]

    def agrees(self, *requests: Request, context: int = CONTEXT) -> None:
        for request in requests:
            for choice in range(request.params.n):
                told = self.executor.model.follow(request, choice, context)
                first, last = self.events[request.request_id, choice][0], self.end(request.request_id, choice)
                assert self.tokens(request.request_id, choice) == told.tokens
                assert (last.finish_reason, last.stop_reason) == (told.finish, told.stop_reason)
                assert first.prompt_logprobs == told.prompt_logprobs


def lengths(spans: Sequence[Span]) -> dict[str, int]:
    return {span.cache_id: len(span.tokens) for span in spans}


def test_one_request_runs_to_its_length() -> None:
    bench = Bench()
    request = bench.add("a", 5, max_tokens=6)
    assert len(bench.run()) == 6, "the step that finishes the prompt samples already"
    bench.agrees(request)


def test_a_long_prompt_is_cut_into_chunks_and_only_the_last_one_samples() -> None:
    bench = Bench(budget=8)
    request = bench.add("a", 20, max_tokens=1)
    wants = [(len(span.tokens), span.want) for (span,) in bench.run()]
    assert wants == [(8, Want.NONE), (8, Want.NONE), (4, Want.TOKEN)]
    bench.agrees(request)


def test_a_step_mixes_decodes_and_chunks_within_the_budget_and_decodes_come_first() -> None:
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


def test_a_prompt_served_before_a_decoding_sequence_leaves_it_its_token() -> None:
    bench = Bench(budget=8, policy="priority")
    bench.add("decodes", 3, priority=1, max_tokens=20)
    bench.step()
    bench.add("prompt", 30, seed=1, max_tokens=2)
    assert [lengths(bench.step()) for _ in range(3)] == [{"decodes/0": 1, "prompt/0": 7}] * 3


def test_no_more_sequences_run_than_allowed() -> None:
    bench = Bench(max_sequences=2)
    requests = [bench.add(f"r{index}", 3, seed=index, max_tokens=4) for index in range(5)]
    assert bench.scheduler.num_waiting == 5
    bench.step()
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (2, 3)
    assert max(len(spans) for spans in bench.run()) == 2
    bench.agrees(*requests)


def test_the_longest_waiting_is_not_overtaken_by_one_that_would_fit() -> None:
    bench = Bench(num_pages=8)
    bench.add("running", 16, max_tokens=8)
    bench.step()
    bench.add("big", 20, seed=1, max_tokens=2)
    bench.add("small", 1, seed=2, max_tokens=2)
    order = [span.cache_id for spans in bench.run() for span in spans]
    assert order.index("big/0") < order.index("small/0")


def test_fcfs_serves_by_arrival_and_ties_in_the_order_added() -> None:
    bench = Bench(max_sequences=1)
    for name, arrival in (("late", 2.0), ("early", 1.0), ("early too", 1.0)):
        bench.add(name, 2, arrival=arrival, priority=-5 if name == "late" else 0, max_tokens=2)
    bench.run()
    assert list(bench.events) == [("early", 0), ("early too", 0), ("late", 0)]


def test_priority_serves_the_smaller_value_first_then_by_arrival() -> None:
    bench = Bench(max_sequences=1, policy="priority")
    for name, priority, arrival in (("c", 1, 0.0), ("b", 0, 2.0), ("a", 0, 1.0)):
        bench.add(name, 2, priority=priority, arrival=arrival, max_tokens=2)
    bench.run()
    assert [name for name, _ in bench.events] == ["a", "b", "c"]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_want_of_pages_takes_them_from_the_one_served_last(policy: str) -> None:
    bench = Bench(num_pages=9, policy=policy)
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


def test_the_first_waits_for_pages_in_flight_instead_of_giving_up_its_own() -> None:
    bench = Bench(num_pages=3)
    requests = [bench.add("a", 7, max_tokens=4)]
    bench.step()
    first = bench.plan()
    requests.append(bench.add("b", 4, seed=1, max_tokens=2))
    second = bench.plan()
    assert lengths(second.batch.spans) == {"b/0": 4}
    bench.commit(first)
    assert bench.scheduler.plan() is None, "the ninth token of a needs a page, and b, which has it, is in flight"
    bench.commit(second)
    assert lengths(bench.step()) == {"a/0": 1}
    assert first.sequences[0].preemptions == 0 and second.sequences[0].preemptions == 1
    bench.run()
    bench.agrees(*requests)


def test_a_preempted_sequence_keeps_its_tokens_and_computes_them_again() -> None:
    bench = Bench(num_pages=6, budget=64)
    requests = [bench.add(name, 10, seed=index, max_tokens=12) for index, name in enumerate("ab")]
    again = [span for spans in bench.run() for span in spans if span.start == 0 and len(span.tokens) > 10]
    assert again and all(span.want is Want.TOKEN for span in again)
    bench.agrees(*requests)


def test_a_prompt_beyond_the_context_or_the_pool_is_refused_at_once() -> None:
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


def test_a_live_id_cannot_be_added_twice_and_an_ended_one_can() -> None:
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


def test_the_context_ends_a_sequence_that_no_other_bound_ends() -> None:
    bench = Bench(context=20)
    request = bench.add("a", 5, max_tokens=None)
    bench.run()
    assert len(bench.tokens("a")) == 15 and bench.end("a").finish_reason is FinishReason.LENGTH
    bench.agrees(request, context=20)


def test_a_pool_smaller_than_the_context_ends_a_sequence_once_it_is_full() -> None:
    bench = Bench(num_pages=4)
    bench.add("a", 5, max_tokens=None)
    bench.run()
    assert len(bench.tokens("a")) == 16 + 1 - 5, "the last token needs no room"
    assert bench.end("a").finish_reason is FinishReason.LENGTH


def stop_at(bench: Bench, index: int, **options: Any) -> Request:
    """A request like "probe", 4 prompt tokens, that stops at the token that comes at `index` without a stop."""
    probe = Request("probe", tuple(position * 7 % 97 for position in range(4)), SamplingParams(max_tokens=30), 0)
    token = bench.executor.model.follow(probe, 0, CONTEXT).tokens[index]
    return bench.add("a", 4, max_tokens=30, stop_token_ids=frozenset({token}), **options)


def test_a_stop_token_ends_the_choice_and_is_its_reason() -> None:
    bench = Bench()
    request = stop_at(bench, 5)
    bench.run()
    bench.agrees(request)
    (stop,) = request.stop_token_ids
    assert bench.tokens("a")[-1] == stop == bench.end("a").stop_reason and len(bench.tokens("a")) <= 6


def test_the_models_own_end_of_text_has_no_stop_reason() -> None:
    bench = Bench()
    request = stop_at(bench, 5)
    assert bench.scheduler.abort("a")
    bench.events.clear()
    request = replace(request, request_id="b", eos_token_ids=tuple(request.stop_token_ids))
    bench.scheduler.add(request)
    bench.run()
    assert bench.end("b").finish_reason is FinishReason.STOP and bench.end("b").stop_reason is None


def test_a_stop_token_before_min_tokens_does_not_stop() -> None:
    bench = Bench()
    request = stop_at(bench, 2, min_tokens=8)
    bench.run()
    bench.agrees(request)
    assert len(bench.tokens("a")) > 8


def test_scoring_alone_generates_nothing() -> None:
    bench = Bench(budget=8)
    request = bench.add("a", 30, max_tokens=0, prompt_logprobs=1)
    full = bench.add("b", CONTEXT, max_tokens=0, prompt_logprobs=1)
    assert all(span.want is Want.NONE for spans in bench.run() for span in spans)
    bench.agrees(request, full)
    assert len(bench.events["a", 0]) == 1 and bench.end("a").finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("budget", [1, 3, 8, 64])
@pytest.mark.parametrize("n", [1, 3])
def test_prompt_logprobs_come_whole_in_the_first_event(budget: int, n: int) -> None:
    bench = Bench(budget=budget)
    requests = [bench.add(f"r{length}", length, n=n, max_tokens=3, prompt_logprobs=1) for length in (1, 2, 9, 17)]
    bench.run()
    bench.agrees(*requests)
    for events in bench.events.values():
        assert all(event.prompt_logprobs is None for event in events[1:])


def test_prompt_logprobs_survive_preemption_without_being_asked_for_twice() -> None:
    bench = Bench(num_pages=7, budget=6)
    requests = [bench.add(name, 13, seed=index, max_tokens=9, prompt_logprobs=0) for index, name in enumerate("ab")]
    targets = [len(span.score.targets) for spans in bench.run() for span in spans if span.score is not None]
    assert sum(targets) == 2 * 12
    bench.agrees(*requests)


def test_choices_share_the_prompt_and_run_its_last_token_themselves() -> None:
    bench = Bench(budget=64)
    request = bench.add("a", 14, n=4, max_tokens=5)
    assert lengths(bench.step()) == {"a/0": 14}
    assert lengths(bench.step()) == {"a/0": 1, "a/1": 1, "a/2": 1, "a/3": 1}
    assert bench.pages.shared == 3, "14 tokens: three full pages are shared, the partial one is everyone's own"
    bench.run()
    bench.agrees(request)
    assert len({bench.tokens("a", choice) for choice in range(4)}) == 4


@pytest.mark.parametrize("max_sequences", [1, 2])
def test_choices_hand_the_prompt_on_when_there_is_no_room_for_all(max_sequences: int) -> None:
    bench = Bench(budget=64, max_sequences=max_sequences)
    request = bench.add("a", 14, n=5, max_tokens=1)
    computed = sum(len(span.tokens) for spans in bench.run() for span in spans)
    assert computed == 14 + 4
    bench.agrees(request)


def test_choices_prefill_alone_when_the_first_has_failed() -> None:
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


def test_no_choice_inherits_the_pages_of_one_that_failed() -> None:
    bench = Bench(
        max_sequences=1, fault=lambda span: NonFiniteLogits("nan") if span.cache_id == "a/0" and span.start else None
    )
    request = bench.add("a", 6, n=2, max_tokens=4)
    spans = [span for spans in bench.run() for span in spans if span.cache_id == "a/1"]
    assert lengths(spans[:1]) == {"a/1": 6}
    assert bench.tokens("a", 1) == bench.executor.model.follow(request, 1, CONTEXT).tokens


def test_choices_that_wait_for_the_prompt_hold_up_nobody_else() -> None:
    bench = Bench(budget=8)
    requests = [bench.add("a", 12, n=2, max_tokens=3), bench.add("b", 3, seed=1, max_tokens=3)]
    bench.step()
    assert lengths(bench.step()) == {"a/0": 4, "b/0": 3}
    bench.run()
    bench.agrees(*requests)


def test_choices_go_on_when_the_first_is_aborted() -> None:
    bench = Bench(budget=8)
    request = bench.add("a", 14, n=3, max_tokens=4)
    bench.step()
    bench.take(bench.scheduler.abort("a", choice=0))
    bench.run()
    assert bench.end("a").finish_reason is FinishReason.ABORT and bench.tokens("a") == ()
    for choice in (1, 2):
        assert bench.tokens("a", choice) == bench.executor.model.follow(request, choice, CONTEXT).tokens


def test_choices_under_a_window_share_what_is_still_there() -> None:
    bench = Bench(window=5, max_sequences=2)
    request = bench.add("a", 14, n=3, max_tokens=30)
    bench.run()
    bench.agrees(request)


def oracle(bench: Bench, wrong: int) -> Callable[[Choice], tuple[int, ...]]:
    """Guesses the next six tokens right, but for the one at index `wrong`."""

    def propose(sequence: Choice) -> tuple[int, ...]:
        free = replace(sequence.request, stop_token_ids=frozenset(), eos_token_ids=())
        free = replace(free, params=replace(free.params, max_tokens=None))
        told = bench.executor.model.follow(free, sequence.choice, 200).tokens
        guesses = told[sequence.generated : sequence.generated + 6]
        return tuple((token + 1) % 97 if index == wrong else token for index, token in enumerate(guesses))

    return propose


@pytest.mark.parametrize("wrong", [0, 1, 3, 5, 99])
def test_drafts_change_no_token_and_save_steps_when_they_are_right(wrong: int) -> None:
    bench = Bench(budget=32, propose=lambda sequence: propose(sequence))
    propose = oracle(bench, wrong)
    requests = [
        bench.add("a", 9, max_tokens=20, logprobs=0),
        bench.add("b", 3, seed=1, max_tokens=None, n=2),
        bench.add("c", 6, seed=2, max_tokens=7, min_tokens=7),
    ]
    steps = bench.run()
    bench.agrees(*requests)
    drafted = [span for spans in steps for span in spans if span.drafts]
    assert drafted and all(span.rows is Rows.ALL and span.end < CONTEXT for span in drafted)
    assert all(sum(lengths(spans).values()) <= 32 for spans in steps)
    assert all(len(event.logprobs or ()) == len(event.token_ids) for event in bench.events["a", 0])
    if wrong >= 6:
        assert sum(span.cache_id == "a/0" for spans in steps for span in spans) == 1 + 3, "1 + 7 + 7 + 5 tokens"


@pytest.mark.parametrize("index", range(1, 8))
def test_a_stop_token_inside_accepted_drafts_ends_the_sequence_there(index: int) -> None:
    bench = Bench(propose=lambda sequence: oracle(bench, 99)(sequence))
    request = stop_at(bench, index)
    bench.run()
    bench.agrees(request)
    assert bench.end("a").finish_reason is FinishReason.STOP


def test_pages_reserved_for_rejected_drafts_go_back_at_once() -> None:
    bench = Bench(propose=lambda sequence: (96, 96, 96, 96, 96, 96))
    bench.add("a", 2, max_tokens=20)
    bench.step()
    assert len(bench.step()[0].tokens) == 7
    assert bench.pages.length("a/0") == 3 and bench.pages.used == 1


def test_no_draft_goes_beyond_max_tokens() -> None:
    bench = Bench(propose=lambda sequence: (1, 2, 3, 4, 5, 6))
    bench.add("a", 4, max_tokens=4)
    steps = bench.run()
    assert max(span.end for spans in steps for span in spans) == 4 + 3, "the fourth token is sampled, never stored"


def test_drafts_take_no_tokens_from_a_prompt() -> None:
    bench = Bench(budget=8, propose=lambda sequence: (1, 2, 3, 4, 5, 6))
    requests = [bench.add("a", 4, max_tokens=20), bench.add("b", 17, seed=1, max_tokens=4)]
    assert lengths(bench.step()) == {"a/0": 4, "b/0": 4}
    assert lengths(bench.step()) == {"a/0": 1, "b/0": 7}
    assert lengths(bench.step()) == {"a/0": 2, "b/0": 6}, "the end of the prompt leaves one token for a guess"
    bench.run()
    bench.agrees(*requests)


def test_drafts_take_no_pages_from_others() -> None:
    def preemptions(propose: Callable[[Choice], tuple[int, ...]] | None) -> list[int]:
        bench = Bench(num_pages=9, budget=64, propose=propose)
        requests = [bench.add(name, 3, seed=index, max_tokens=10) for index, name in enumerate("abc")]
        sequences: dict[str, Choice] = {}
        while bench.scheduler.has_work:
            plan = bench.plan()
            sequences |= {sequence.cache_id: sequence for sequence in plan.sequences}
            bench.commit(plan)
        bench.agrees(*requests)
        return [sequence.preemptions for sequence in sequences.values()]

    assert preemptions(lambda sequence: (1, 2, 3, 4, 5, 6)) == preemptions(None) == [0, 0, 0]


def test_an_error_of_a_span_ends_that_choice_alone() -> None:
    error = NonFiniteLogits("nan")
    bench = Bench(fault=lambda span: error if span.cache_id == "b/0" and span.start == 6 else None)
    requests = [bench.add(name, 4, seed=index, max_tokens=6) for index, name in enumerate("abc")]
    bench.run()
    bench.agrees(requests[0], requests[2])
    assert bench.end("b").finish_reason is FinishReason.ERROR and bench.end("b").error is error
    assert bench.tokens("b") == bench.executor.model.follow(requests[1], 0, CONTEXT).tokens[:3]


def test_a_step_that_fails_ends_those_in_it_and_no_one_else() -> None:
    bench = Bench(max_sequences=2)
    requests = [bench.add(name, 4, seed=index, max_tokens=3) for index, name in enumerate("abc")]
    error = NonFiniteLogits("the step broke")
    bench.take(bench.scheduler.fail(bench.plan(), error))
    assert [bench.end(name).error for name in "ab"] == [error, error]
    bench.run()
    bench.agrees(requests[2])


def test_abort_ends_all_choices_at_once_and_frees_their_pages() -> None:
    bench = Bench()
    bench.add("a", 8, n=3, max_tokens=9, trace_id="t")
    for _ in range(3):
        bench.step()
    bench.take(bench.scheduler.abort("a"))
    assert [bench.end("a", choice).finish_reason for choice in range(3)] == [FinishReason.ABORT] * 3
    assert bench.end("a").trace_id == "t"
    assert bench.pages.used == 0 and not bench.scheduler.has_work and bench.scheduler.plan() is None
    assert bench.scheduler.abort("a") == [] == bench.scheduler.abort("unknown")


def test_a_sequence_ended_in_flight_keeps_its_pages_until_the_step_is_over() -> None:
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


def test_a_commit_may_trail_the_next_plan() -> None:
    bench = Bench(budget=4, num_pages=12)
    requests = [bench.add(name, 5, seed=index, max_tokens=9) for index, name in enumerate("abcd")]
    behind: list[tuple[Plan, FinishedStep]] = []
    while bench.scheduler.has_work:
        plan = bench.scheduler.plan()
        submitted = [] if plan is None else [(plan, bench.executor.submit(plan.batch))]
        for earlier, step in behind:
            bench.take(bench.scheduler.commit(earlier, step.result()))
            bench.pages.check()
        behind = submitted
    bench.agrees(*requests)
    assert bench.pages.used == 0


def test_a_deadline_ends_the_request_whether_it_runs_or_waits() -> None:
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


def test_a_deadline_dies_with_its_request() -> None:
    bench = Bench()
    bench.add("a", 4, max_tokens=20, deadline=5.0)
    bench.scheduler.abort("a")
    bench.add("a", 4, max_tokens=3)
    assert bench.scheduler.expire(6.0) == []


@pytest.mark.parametrize("cause", [FinishReason.ABORT, NonFiniteLogits("dead")])
def test_drain_ends_everything_in_one_terminal_event_each(cause: FinishReason | FerrumError) -> None:
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


def test_pages_held_by_strangers_end_a_request_instead_of_hanging_it() -> None:
    bench = Bench(num_pages=8)
    assert bench.pages.reserve("stranger", 24)
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
    assert bench.pages.ids() == ("stranger",)


@pytest.mark.parametrize(
    ("sampled", "context", "outcome"),
    [
        ((1, 2), 99, Outcome((1, 2))),
        ((1, 2, 3, 4), 99, Outcome((1, 2, 3), FinishReason.LENGTH)),
        ((1, 2, 3), 4, Outcome((1, 2), FinishReason.LENGTH)),
        ((7, 7, 1), 99, Outcome((7, 7), FinishReason.STOP, 7)),
        ((1, 8, 1), 99, Outcome((1, 8), FinishReason.STOP, None)),
        ((1, 2, 7), 99, Outcome((1, 2, 7), FinishReason.STOP, 7)),
    ],
)
def test_tokens_after_the_one_that_ends_a_sequence_never_happened(
    sampled: tuple[int, ...], context: int, outcome: Outcome
) -> None:
    request = Request(
        "a", (0, 0), SamplingParams(max_tokens=3, min_tokens=1), 0, stop_token_ids=frozenset({7, 8}), eos_token_ids=(8,)
    )
    assert judge(begin(request, 0), sampled, context) == outcome


@pytest.mark.parametrize("field", ["max_tokens_per_step", "max_sequences"])
def test_bounds_below_one_are_refused(field: str) -> None:
    bounds: dict[str, Any] = {"max_tokens_per_step": 4, "max_sequences": 4, "max_sequence_length": 4, field: 0}
    with pytest.raises(RequestError) as caught:
        Scheduler(PageTable([PageGroup("main", 4, 4)]), policy=POLICIES["fcfs"], **bounds)
    assert caught.value.param == field
