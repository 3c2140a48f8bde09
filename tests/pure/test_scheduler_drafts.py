"""Draft tokens in a plan change no token and take no resources from known tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ferrum.core.step import Rows
from ferrum.core.types import FinishReason
from ferrum.scheduler.sequence import Sequence as Choice
from scheduler_bench import CONTEXT, Bench, lengths, oracle, stop_at


@pytest.mark.parametrize("wrong", [0, 1, 3, 5, 99])
def test_drafts_change_no_token_and_save_steps_when_accepted(wrong: int) -> None:
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
def test_stop_token_inside_accepted_drafts_ends_the_sequence(index: int) -> None:
    bench = Bench(propose=lambda sequence: oracle(bench, 99)(sequence))
    request = stop_at(bench, index)
    bench.run()
    bench.agrees(request)
    assert bench.end("a").finish_reason is FinishReason.STOP


def test_pages_of_rejected_drafts_are_released_at_once() -> None:
    bench = Bench(propose=lambda sequence: (96, 96, 96, 96, 96, 96))
    bench.add("a", 2, max_tokens=20)
    bench.step()
    assert len(bench.step()[0].tokens) == 7
    assert bench.pages.length("a/0") == 3 and bench.pages.used == 1


def test_drafts_do_not_exceed_max_tokens() -> None:
    bench = Bench(propose=lambda sequence: (1, 2, 3, 4, 5, 6))
    bench.add("a", 4, max_tokens=4)
    steps = bench.run()
    assert max(span.end for spans in steps for span in spans) == 4 + 3, "the fourth token is sampled, never stored"


def test_drafts_take_no_tokens_from_a_prompt() -> None:
    bench = Bench(budget=8, propose=lambda sequence: (1, 2, 3, 4, 5, 6))
    requests = [bench.add("a", 4, max_tokens=20), bench.add("b", 17, seed=1, max_tokens=4)]
    assert lengths(bench.step()) == {"a/0": 4, "b/0": 4}
    assert lengths(bench.step()) == {"a/0": 1, "b/0": 7}
    assert lengths(bench.step()) == {"a/0": 2, "b/0": 6}, "the end of the prompt leaves one token for a draft"
    bench.run()
    bench.agrees(*requests)


def test_drafts_cause_no_preemption() -> None:
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


def test_drafter_is_asked_only_if_it_could_draft_for_a_sequence() -> None:
    asked: list[str] = []

    def propose(sequence: Choice) -> tuple[int, ...]:
        asked.append(sequence.cache_id)
        return ()

    bench = Bench(propose=propose)
    bench.scheduler.drafter.only_predicted = True
    bench.add("other", 3, max_tokens=6)
    bench.step()
    bench.step()
    assert not asked
    bench.add("some", 3, seed=1, max_tokens=3, prediction=(5,))
    bench.step()
    bench.step()
    assert set(asked) == {"other/0", "some/0"}, "the drafter sees all sequences that the step samples for"
