"""A draft model: drafts are hints, and sequences continue without them."""

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
from ferrum.core.types import Request
from ferrum.sampling import rules
from ferrum.sampling.rows import TokenCounts
from ferrum.scheduler.drafts import DraftRequest, StepLoad
from ferrum.scheduler.sequence import Sequence, begin
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


def draft_lengths(model: DraftModel, *sequences: Sequence) -> list[int]:
    """Return how many draft tokens each sequence gets of three."""
    return [len(tokens) for tokens in model.draft([DraftRequest(each, 3) for each in sequences])]


@pytest.mark.parametrize("error", [KvExhausted("full"), StepError("odd"), NonFiniteLogits("nan")])
def test_a_failed_step_costs_only_the_drafts_of_its_sequences(
    executor: FakeContractExecutor, error: FerrumError, caplog: pytest.LogCaptureFixture
) -> None:
    model = DraftModel(executor, SetCosts(), SetCosts())
    first, other = sequence_of("first"), sequence_of("other")
    assert draft_lengths(model, first) == [3]
    executor.lm.explode = error
    first.extend((4,))
    assert draft_lengths(model, first) == draft_lengths(model, first) == [0] and not executor.pages.used
    executor.lm.explode = None
    assert draft_lengths(model, other) == [3]
    assert (model.limit(first) > 0) == isinstance(error, KvExhausted), "there may be room later"
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "logged once"
    for each in (first, other):
        model.forget(each)
    assert model.limit(first) and not executor.pages.used, "an id may be reused"


def test_a_failed_sequence_leaves_the_others_their_drafts(executor: FakeContractExecutor) -> None:
    model = DraftModel(executor, SetCosts(), SetCosts())
    good, bad = sequence_of("good"), sequence_of("bad", 1, POISON)
    assert draft_lengths(model, bad, good) == [0, 3]
    assert not model.limit(bad) and model.limit(good)


def test_a_broken_model_is_not_used_again(executor: FakeContractExecutor, caplog: pytest.LogCaptureFixture) -> None:
    model = DraftModel(executor, SetCosts(0.0), SetCosts(0.0))
    drafter = Speculator(SetCosts(), max_draft=3, proposers=[], model=model)
    sequence = sequence_of("a")
    executor.lm.explode = RuntimeError("out of order")
    passes = []
    for _ in range(3):
        assert drafter.draft([DraftRequest(sequence, 3)], StepLoad(1, 3, 8)) == [()]
        passes.append(executor.lm.passes)
    drafter.forget(sequence)
    assert passes == [1, 1, 1] and model.limit(sequence_of("b")) == 0
    assert draft_lengths(model, sequence) == [0]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_drafts_are_sampled_with_the_whole_history_counted_once(
    executor: FakeContractExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every draft used to count the whole text again."""
    model, sequence = DraftModel(executor, SetCosts(), SetCosts()), sequence_of("a", *[1, 2, 3] * 6)
    submit, seen, counted = executor.submit, [], []

    class Watched(TokenCounts):
        def __call__(self, length: int, drafts: Series[int] = ()) -> Any:
            counted.append(length - self._end)
            return super().__call__(length, drafts)

    def watch(batch: StepBatch) -> Any:
        for span in batch.spans:
            if span.sampling is not None:
                seen.append(list(span.sampling.history))
                rules._seen(span.sampling, Watched, span.sampling.history, 0)(span.end)
        return submit(batch)

    monkeypatch.setattr(executor, "submit", watch)
    for right in (3, 0, 1, 2, 3, 0, 0):
        text = list(sequence.tokens)
        (draft,) = model.draft([DraftRequest(sequence, 3)])
        assert seen[-3:] == [[*text, *draft[:count]] for count in range(3)]
        sequence.extend((*draft[:right], 5))
    assert sum(counted) <= len(sequence.tokens) + 7 * 3


def test_parameters_are_not_checked_again(executor: FakeContractExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch would wait for the check at every step."""
    model = DraftModel(executor, SetCosts(), SetCosts())
    sequence = sequence_of("a", allowed_token_ids=list(range(100)), logprobs=1)
    made: list[SamplingParams] = []
    check = SamplingParams.__post_init__
    monkeypatch.setattr(SamplingParams, "__post_init__", lambda params: made.append(params) or check(params))
    for _ in range(3):
        assert draft_lengths(model, sequence) == [3]
        sequence.extend((4,))
    assert not made


class Stored(SetCosts):
    """Costs of one second per stored token."""

    def predict(self, rows: int, context_tokens: int) -> float:
        return float(context_tokens)


def test_the_cost_of_a_draft_token_is_predicted_without_scanning_sequences(
    executor: FakeContractExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step asks for every draft token of every sequence: 256 sequences took 14 ms."""
    model, sequences = DraftModel(executor, Stored(), SetCosts()), [sequence_of(name) for name in "abcd"]
    reads: list[_Cached] = []
    monkeypatch.setattr(
        _Cached, "length", property(lambda each: reads.append(each) or each.known + len(each.draft_tokens))
    )
    draft_lengths(model, *sequences)
    reads.clear()
    assert [model.seconds(count) for count in (1, 2, 4)] == [5.0, 10.0, 20.0], "three tokens and two draft tokens each"
    assert len(reads) == len(sequences)
    model.forget(sequences[0])
    sequences[1].extend((1,))
    draft_lengths(model, sequences[1])
    assert model.seconds(3) == 5.0 + 5.0 + 6.0
