"""A draft model: guesses are a hint, so whoever gets none goes on without."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from collections.abc import Sequence as Series
from typing import Any

import pytest

from contract_kit import POISON, FakeContractExecutor, make_fake
from ferrum.core.errors import FerrumError, KvExhausted, NonFiniteLogits, StepError
from ferrum.core.params import SamplingParams
from ferrum.core.step import StepBatch
from ferrum.core.types import Request, Sequence
from ferrum.sampling import rules
from ferrum.sampling.token_counts import TokenCounts
from ferrum.scheduler.drafts import Room, Wish
from ferrum.scheduler.sequence import begin
from ferrum.speculative.draft_model import DraftModel, _Cached
from ferrum.speculative.speculator import Speculator
from fixed_costs import SetCosts


@pytest.fixture
def executor() -> Iterator[FakeContractExecutor]:
    made = make_fake().executor
    assert isinstance(made, FakeContractExecutor)
    with made:
        yield made


def sequence_of(name: str, *tokens: int, **params: object) -> Sequence:
    return begin(Request(name, tokens or (1, 2, 3), SamplingParams.from_dict(params), 0))[0]


def guessed(model: DraftModel, *sequences: Sequence) -> list[int]:
    """How many guesses each gets that would like to have three."""
    return [len(tokens) for tokens in model.draft([Wish(each, 3) for each in sequences])]


@pytest.mark.parametrize("error", [KvExhausted("full"), StepError("odd"), NonFiniteLogits("nan")])
def test_a_step_that_fails_takes_nobody_but_the_guesses_of_its_sequences(
    executor: FakeContractExecutor, error: FerrumError, caplog: pytest.LogCaptureFixture
) -> None:
    model = DraftModel(executor, SetCosts(), SetCosts())
    first, other = sequence_of("first"), sequence_of("other")
    assert guessed(model, first) == [3]
    executor.lm.explode = error
    first.extend((4,))
    assert guessed(model, first) == guessed(model, first) == [0] and not executor.pages.used
    executor.lm.explode = None
    assert guessed(model, other) == [3]
    assert (model.limit(first) > 0) == isinstance(error, KvExhausted), "there may be room later"
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "told once"
    for each in (first, other):
        model.forget(each)
    assert model.limit(first) and not executor.pages.used, "an id may come back"


def test_a_sequence_that_fails_alone_leaves_the_others_their_guesses(executor: FakeContractExecutor) -> None:
    model = DraftModel(executor, SetCosts(), SetCosts())
    good, bad = sequence_of("good"), sequence_of("bad", 1, POISON)
    assert guessed(model, bad, good) == [0, 3]
    assert not model.limit(bad) and model.limit(good)


def test_a_broken_model_is_asked_no_more(executor: FakeContractExecutor, caplog: pytest.LogCaptureFixture) -> None:
    model = DraftModel(executor, SetCosts(0.0), SetCosts(0.0))
    drafter = Speculator(SetCosts(), max_draft=3, proposers=[], model=model)
    sequence = sequence_of("a")
    executor.lm.explode = RuntimeError("out of order")
    passes = []
    for _ in range(3):
        assert drafter.draft([Wish(sequence, 3)], Room(1, 3, 8)) == [()]
        passes.append(executor.lm.passes)
    drafter.forget(sequence)
    assert passes == [1, 1, 1] and model.limit(sequence_of("b")) == 0
    assert guessed(model, sequence) == [0]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_guesses_are_sampled_after_the_sequence_and_the_guesses_before_them_and_each_token_is_counted_once(
    executor: FakeContractExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every draft the whole text was counted anew."""
    model, sequence = DraftModel(executor, SetCosts(), SetCosts()), sequence_of("a", *[1, 2, 3] * 6)
    submit, seen, counted = executor.submit, [], []

    class Watched(TokenCounts):
        def __call__(self, drafts: Series[int] = ()) -> Any:
            counted.append(len(self._history) - self._end)
            return super().__call__(drafts)

    def look(batch: StepBatch) -> Any:
        for span in batch.spans:
            if span.sampling is not None:
                seen.append(list(span.sampling.history))
                rules._seen(span.sampling, Watched, span.sampling.history, 0)()
        return submit(batch)

    monkeypatch.setattr(executor, "submit", look)
    for right in (3, 0, 1, 2, 3, 0, 0):
        text = list(sequence.tokens)
        (guesses,) = model.draft([Wish(sequence, 3)])
        assert seen[-3:] == [[*text, *guesses[:count]] for count in range(3)]
        sequence.extend((*guesses[:right], 5))
    assert sum(counted) <= len(sequence.tokens) + 7 * 3


def test_what_a_request_allows_was_looked_through_when_it_was_made_and_is_not_again(
    executor: FakeContractExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sequences would wait for it, at every step."""
    model = DraftModel(executor, SetCosts(), SetCosts())
    sequence = sequence_of("a", allowed_token_ids=list(range(100)), logprobs=1)
    made: list[SamplingParams] = []
    check = SamplingParams.__post_init__
    monkeypatch.setattr(SamplingParams, "__post_init__", lambda params: made.append(params) or check(params))
    for _ in range(3):
        assert guessed(model, sequence) == [3]
        sequence.extend((4,))
    assert not made


class Stored(SetCosts):
    """Costs of a second for each stored token."""

    def predict(self, rows: int, context_tokens: int) -> float:
        return float(context_tokens)


def test_what_a_guess_takes_is_told_without_a_look_at_every_sequence(
    executor: FakeContractExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step asks for every guess of every sequence: 256 of them took 14 ms."""
    model, sequences = DraftModel(executor, Stored(), SetCosts()), [sequence_of(name) for name in "abcd"]
    looks: list[_Cached] = []
    monkeypatch.setattr(_Cached, "length", property(lambda each: looks.append(each) or each.known + len(each.draft_tokens)))
    guessed(model, *sequences)
    looks.clear()
    assert [model.seconds(count) for count in (1, 2, 4)] == [5.0, 10.0, 20.0], "three tokens and two guesses each"
    assert len(looks) == len(sequences)
    model.forget(sequences[0])
    sequences[1].extend((1,))
    guessed(model, sequences[1])
    assert model.seconds(3) == 5.0 + 5.0 + 6.0
