"""Records and replays of requests in the form of replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ferrum.client.records.explain import Passage, passages
from ferrum.client.records.record import Record, request_dict
from ferrum.client.records.replayer import Difference, Replay
from ferrum.client.request_output import Logprob, Logprobs
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.public_names import without_directories
from ferrum.server.common.top_tokens import finite, top
from ferrum.text.tokenizer import Tokenizer


class RecordedChoice(Reply):
    """A recorded choice."""

    index: int
    text: str | None
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str | None
    stop_reason: int | str | None
    error: str | None


class RecordedRequest(Reply):
    """The record of one prompt: origin, request, schedule and results."""

    id: str
    time: float
    finished: bool
    cached_tokens: int | None
    origin: dict[str, Any]
    request: dict[str, Any]
    prompt: str | None
    prompt_logprobs: list[float] | None
    schedule: list[Passage]
    choices: list[RecordedChoice]


class RecordedRequests(Reply):
    """The reply of GET /v1/requests/{id}; one record per prompt."""

    id: str
    object: Literal["request"]
    live: bool
    records: list[RecordedRequest]


class RankedToken(Reply):
    """A top token at a position."""

    token_id: int
    token: str | None
    logprob: float
    rank: int


class ReplayedToken(RankedToken):
    """A replayed token and the top tokens at its position."""

    top_logprobs: list[RankedToken]


class ReplayedChoice(Reply):
    """A replayed choice."""

    index: int
    finish_reason: str | None
    tokens: list[ReplayedToken]


class ReplayedRequest(Reply):
    """A replayed prompt."""

    id: str
    same: bool
    differences: list[Difference]
    choices: list[ReplayedChoice]


class ReplayedRequests(Reply):
    """The reply of POST /v1/requests/{id}/replay; `same`: all prompts are equal in every bit."""

    id: str
    object: Literal["request.replay"]
    same: bool
    replays: list[ReplayedRequest]


def recorded_request(record: Record, tokenizer: Tokenizer | None) -> RecordedRequest:
    """Return a record as clients see it."""
    end = record.end
    return RecordedRequest(
        id=record.id,
        time=record.time,
        finished=end is not None,
        cached_tokens=None if end is None else end.cached_tokens,
        origin=without_directories(record.origin.to_dict()),
        request=request_dict(record.request),
        prompt=_text(record.request.prompt, tokenizer),
        prompt_logprobs=None if end is None or end.prompt_logprobs is None else list(end.prompt_logprobs),
        schedule=list(passages(record)),
        choices=[_recorded_choice(record, choice, tokenizer) for choice in range(record.request.params.n)],
    )


def _recorded_choice(record: Record, index: int, tokenizer: Tokenizer | None) -> RecordedChoice:
    end = None if record.end is None else record.end.choices[index]
    sampled = record.sampled(index)
    tokens = [token for token, _ in sampled]
    return RecordedChoice(
        index=index,
        text=_text(tokens, tokenizer),
        token_ids=tokens,
        logprobs=[logprob for _, logprob in sampled],
        finish_reason=None if end is None else end.finish_reason,
        stop_reason=None if end is None else end.stop_reason,
        error=None if end is None else end.error,
    )


def _text(tokens: Sequence[int], tokenizer: Tokenizer | None) -> str | None:
    return None if tokenizer is None else tokenizer.decode(tokens, skip_special_tokens=False)


def replayed_request(replay: Replay, top: int) -> ReplayedRequest:
    """Return a replay as clients see it."""
    differences = list(replay.differences())
    choices = [
        ReplayedChoice(
            index=choice.index,
            finish_reason=choice.finish_reason,
            tokens=[_replayed(each, top) for each in choice.logprobs or ()],
        )
        for choice in replay.output().outputs
    ]
    return ReplayedRequest(id=replay.record.id, same=not differences, differences=differences, choices=choices)


def _replayed(position: Logprobs, count: int) -> ReplayedToken:
    token, entry = next(iter(position.items()))
    ranked = [_ranked(other, each) for other, each in top(position, count)]
    return ReplayedToken(**_ranked(token, entry).model_dump(), top_logprobs=ranked)


def _ranked(token: int, entry: Logprob) -> RankedToken:
    return RankedToken(token_id=token, token=entry.decoded_token, logprob=finite(entry.logprob), rank=entry.rank)
