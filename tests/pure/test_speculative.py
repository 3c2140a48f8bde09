"""Proposers: the source of drafts, the cost of lookups, and outputs that follow a prediction."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrum.client.output_stream import RequestStream
from ferrum.core.params import SamplingParams
from ferrum.core.step import Inputs
from ferrum.core.types import Request, TokenEvent
from ferrum.scheduler.drafts import DraftRequest
from ferrum.scheduler.sequence import Sequence, begin
from ferrum.scheduler.step_plan import StepCosts
from ferrum.speculative.ngram import INDEX_CHUNK, SIZES, NGramProposer
from ferrum.speculative.predicted_output import PredictedText, PredictionFollower, PredictionProposer
from ferrum.speculative.speculator import Speculator


class Read(list[int]):
    """A text that counts how many of its tokens are read."""

    seen = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.seen += len(found) if isinstance(index, slice) else 1
        return found


def sequence_of(tokens: Iterable[int], prediction: Iterable[int] = ()) -> Sequence:
    prompt = tuple(tokens)
    return begin(Request("a", prompt, SamplingParams(), 0, prediction=tuple(prediction)))[0]


def looked_up(tokens: Iterable[int], most: int = 4) -> tuple[int, ...]:
    draft = NGramProposer().propose(sequence_of(tokens), most)
    return () if draft is None else draft.tokens


def test_what_followed_the_last_tokens_before_is_proposed() -> None:
    assert looked_up([1, 2, 3, 4, 5, 6, 9, 1, 2]) == (3, 4, 5, 6)
    assert looked_up([1, 2, 3, 4, 5]) == ()
    assert looked_up([1, 2, 8, 7, 1, 2, 3, 4, 1, 2]) == (3, 4, 1, 2), "the latest match counts"


def test_a_longer_match_precedes_a_later_one() -> None:
    assert looked_up([5, 1, 2, 3, 40, 9, 2, 3, 50, 8, 5, 1, 2, 3]) == (40, 9, 2, 3)


@pytest.mark.parametrize("period", [1, 2, 3, 7])
def test_a_repeating_text_is_continued_past_its_end(period: int) -> None:
    text = [position % period for position in range(20)]
    assert looked_up(text, most=16) == tuple(position % period for position in range(20, 36))


@pytest.mark.parametrize("text", [range(4096), [7] * 4096, [position % 97 for position in range(4096)]])
def test_a_lookup_reads_constantly_many_tokens_per_token(text: Iterable[int]) -> None:
    """Indexing is O(1) amortised: lookups at every token of a text of twice the length read twice as much."""
    whole = list(text)
    reads = []
    for length in (2048, 4096):
        proposer, sequence = NGramProposer(), sequence_of(whole[:2])
        sequence.tokens = read = Read(whole[:2])
        for token in whole[2:length]:
            read.append(token)
            proposer.propose(sequence, 8)
        reads.append(read.seen)
    assert reads[1] <= 2.1 * reads[0] and reads[1] <= 40 * 4096


def test_a_long_prompt_is_indexed_over_several_lookups() -> None:
    """The batch waits during a lookup."""
    prompt = Read([*range(3 * INDEX_CHUNK), -1, -2, 7, 8, 9, -1, -2])
    proposer = NGramProposer()
    sequence = begin(Request("a", prompt, SamplingParams(), 0))[0]  # type: ignore[arg-type]
    drafts = []
    for _ in range(4):
        before = prompt.seen
        drafts.append(proposer.propose(sequence, 3))
        assert prompt.seen - before <= sum(SIZES) * INDEX_CHUNK
    assert drafts[:3] == [None] * 3, "not found yet"
    assert drafts[3] is not None and drafts[3].tokens == (7, 8, 9)


def test_output_is_found_before_its_long_prompt_is_indexed() -> None:
    proposer, sequence = NGramProposer(), sequence_of(range(3 * INDEX_CHUNK))
    assert proposer.propose(sequence, 2) is None
    sequence.extend((-1, -2, -3, -1, -2))
    draft = proposer.propose(sequence, 2)
    assert draft is not None and draft.tokens == (-3, -1)


def test_a_forgotten_sequence_starts_over() -> None:
    proposer, sequence = NGramProposer(), sequence_of([1, 2, 3, 1, 2])
    assert proposer.propose(sequence, 1) is not None
    proposer.forget(sequence)
    assert proposer.propose(sequence_of([1, 2]), 1) is None


PREDICTED = tuple(range(100, 160))


@pytest.mark.parametrize(
    ("output", "accepted"),
    [
        (PREDICTED, 60),
        (PREDICTED[:20], 20),
        ((1, 2, 3), 0),
        ((*PREDICTED[:20], 7, *PREDICTED[21:]), 20 + 37),  # two tokens suffice to continue after a change
        ((*PREDICTED[:20], *PREDICTED[30:]), 20 + 28),
        ((*PREDICTED[:20], 7, 8, 9, *PREDICTED[20:]), 20 + 38),
        ((), 0),
    ],
)
def test_an_output_follows_its_prediction_through_changes(output: tuple[int, ...], accepted: int) -> None:
    follower = PredictionFollower(PredictedText(PREDICTED))
    follower.feed(output)
    assert follower.accepted == accepted
    by_pieces = PredictionFollower(PredictedText(PREDICTED))
    for start in range(0, len(output), 7):
        by_pieces.feed(output[start : start + 7])
    assert by_pieces.accepted == accepted and by_pieces.following(5) == follower.following(5)


def test_a_repetitive_prediction_is_followed_near_the_change() -> None:
    lines = tuple(token for line in range(30) for token in (1, 2, 3, 50 + line))
    follower = PredictionFollower(PredictedText(lines))
    follower.feed((*lines[:9], 99, 3, 52, 1, 2))
    assert follower.following(3) == (3, 53, 1)


@given(text=st.lists(st.integers(0, 2), max_size=40), tail=st.lists(st.integers(0, 2), max_size=5))
def test_a_lost_output_is_found_at_the_last_longest_ngram(text: list[int], tail: list[int]) -> None:
    places = {
        size: [end for end in range(size, len(text) + 1) if text[end - size : end] == tail[-size:]] for size in SIZES
    }
    expected = next((places[size][-1] for size in SIZES if size <= len(tail) and places[size]), None)
    assert PredictedText(tuple(text)).find_end(tuple(tail)) == expected


def test_a_prediction_is_proposed_from_the_first_token() -> None:
    proposer, sequence = PredictionProposer(), sequence_of([1, 2], PREDICTED)
    draft = proposer.propose(sequence, 3)
    assert draft is not None and draft.tokens == (100, 101, 102)
    sequence.tokens += [100, 101, 5]
    assert proposer.propose(sequence, 3) is None
    sequence.tokens += [110, 111]
    draft = proposer.propose(sequence, 3)
    assert draft is not None and draft.tokens == (112, 113, 114)
    assert PredictionProposer().propose(sequence_of([1, 2]), 3) is None


def test_drafts_need_a_prediction_unless_there_is_another_source() -> None:
    assert Speculator(StepCosts(), max_draft=4, proposers=[PredictionProposer()]).only_predicted
    by_text = Speculator(StepCosts(), max_draft=4, proposers=[PredictionProposer(), NGramProposer()])
    assert not by_text.only_predicted


def test_the_choices_of_a_request_share_one_index_of_its_prompt() -> None:
    prompt = tuple(range(50_000))
    proposer, (*choices, last) = NGramProposer(), begin(Request("a", prompt, SamplingParams(n=4), 0))
    for _ in range(0, len(prompt), INDEX_CHUNK):
        proposer.propose(last, 3)
    tracemalloc.start()
    try:
        for choice in choices:
            choice.extend((7, 8))
            draft = proposer.propose(choice, 3)
            assert draft is not None and draft.tokens == (9, 10, 11)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 2 << 20, "three token lists, not three indexes of 14 MB"


def test_the_choices_of_a_request_share_its_prediction() -> None:
    request = Request("a", (1, 2), SamplingParams(n=8), 0, prediction=tuple(range(100, 20_100)))
    stream = RequestStream(request, "a", None, lambda: None)
    proposer, choices = PredictionProposer(), begin(request)
    assert all(proposer.propose(choice, 3) for choice in choices)
    tracemalloc.start()
    for index, choice in enumerate(choices):
        choice.tokens += [5, 1110, 1111]
        stream.push(TokenEvent("a", index, (5, 1110, 1111)))
        draft = proposer.propose(choice, 3)
        assert draft is not None and draft.tokens == (1112, 1113, 1114)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    array = 8 * len(request.prediction)
    assert 2 * array < taken < 3 * array, "once for the client and once for the engine"
    for choice in choices:
        proposer.forget(choice)
    again = begin(Request("a", (1, 2), SamplingParams(), 0, prediction=(7, 8, 9)))[0]
    draft = proposer.propose(again, 3)
    assert draft is not None and draft.tokens == (7, 8, 9), "a later request may reuse an id"


def test_tokens_that_stand_for_images_are_never_proposed() -> None:
    """What an image stood behind stands there again; a draft that begins with its placeholder is none."""
    speculator = Speculator(StepCosts(), max_draft=4, proposers=[NGramProposer()])
    for after, expected in ((7, (7,)), (9, None)):
        prompt = (1, 2, 3, after, 9, 9, 1, 2, 3)
        request = Request("a", prompt, SamplingParams(), 0, inputs=(Inputs((4, 5), None, b"image"),))
        draft = speculator._propose(DraftRequest(begin(request)[0], 4))
        assert (None if draft is None else draft.tokens) == expected
