"""Recorded requests for clients: found by the id of their reply, explained, and run again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from ferrum.core.errors import RecordNotFound
from ferrum.engine.records.explain import passages
from ferrum.engine.records.record import Record, request_dict
from ferrum.engine.records.recorder import Recorder
from ferrum.engine.records.replayer import Replay
from ferrum.engine.request_output import Logprob, Logprobs
from ferrum.server import writers
from ferrum.server.errors import ApiError
from ferrum.server.prepare import part_id
from ferrum.server.replies import Reply
from ferrum.server.service import REPLY_KINDS
from ferrum.text.tokenizer import Tokenizer


class RecordedChoice(Reply):
    """What came of a choice, as it was recorded."""

    index: int
    text: str | None
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str | None
    stop_reason: int | str | None
    error: str | None


class Passage(Reply):
    """Consecutive shares of a choice in steps, in which it did the same."""

    choice: int
    work: Literal["prompt", "again", "decode", "verify"]
    first_step: int
    last_step: int
    start: int
    tokens: int
    found: int
    drafted: int
    accepted: int
    sampled: int
    most_rows: int


class RecordedRequest(Reply):
    """One prompt: where it ran, what it asked, what was done for it and what came of it."""

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
    """A token that was likely at a position."""

    token_id: int
    token: str | None
    logprob: float
    rank: int


class ReplayedToken(RankedToken):
    """A token that came again, and the likeliest ones there."""

    top_logprobs: list[RankedToken]


class Difference(Reply):
    """The first thing of a choice that is not as it was recorded."""

    choice: int
    what: str
    position: int | None
    recorded: int | float | str | None
    now: int | float | str | None


class ReplayedChoice(Reply):
    """What came of a choice now."""

    index: int
    finish_reason: str | None
    tokens: list[ReplayedToken]


class ReplayedRequest(Reply):
    """One prompt that ran again."""

    id: str
    same: bool
    differences: list[Difference]
    choices: list[ReplayedChoice]


class ReplayedRequests(Reply):
    """The reply of POST /v1/requests/{id}/replay; whether all bits of all prompts are the same."""

    id: str
    object: Literal["request.replay"]
    same: bool
    replays: list[ReplayedRequest]


def find_records(recorder: Recorder | None, tenant: str, id: str) -> list[Record]:
    """The records of a tenant's request, one per prompt, by the id of its reply or by its own `request_id`.

    Raises:
        ApiError: 404.
        RecordDamaged: a record is not as it was written.
    """
    if recorder is None:
        raise ApiError(404, "requests are not recorded here; see --record", code=RecordNotFound.code, param="id")
    for name in (id, *(f"{kind}-{id}" for kind in REPLY_KINDS)):
        bodies = (_alone(recorder, tenant, name), _several(recorder, tenant, name))
        if found := max(bodies, key=lambda records: records[0].time if records else -math.inf):
            return found
    raise ApiError(404, f"no request {id!r} is recorded", code=RecordNotFound.code, param="id")


def _alone(recorder: Recorder, tenant: str, id: str) -> list[Record]:
    try:
        return [recorder.find(tenant, id)]
    except RecordNotFound:
        return []


def _several(recorder: Recorder, tenant: str, id: str) -> list[Record]:
    """The numbered prompts of the last body of several; what is older than its first is of one that had more."""
    found: list[Record] = []
    while its := _alone(recorder, tenant, part_id(id, len(found))):
        if found and its[0].time < found[0].time:
            break
        found += its
    return found


def recorded_request(record: Record, tokenizer: Tokenizer | None) -> RecordedRequest:
    """A record, explained."""
    end = record.end
    return RecordedRequest(
        id=record.id,
        time=record.time,
        finished=end is not None,
        cached_tokens=None if end is None else end.cached_tokens,
        origin=record.origin.to_dict(),
        request=request_dict(record.request),
        prompt=_text(record.request.prompt, tokenizer),
        prompt_logprobs=None if end is None or end.prompt_logprobs is None else list(end.prompt_logprobs),
        schedule=[Passage(**each.to_dict()) for each in passages(record)],
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
    """What came of a request that ran again."""
    differences = [
        Difference(choice=each.choice, what=each.what, position=each.position, recorded=each.recorded, now=each.now)
        for each in replay.differences()
    ]
    choices = [
        ReplayedChoice(
            index=choice.index,
            finish_reason=choice.finish_reason,
            tokens=[_replayed(each, top) for each in choice.logprobs or ()],
        )
        for choice in replay.output().outputs
    ]
    return ReplayedRequest(id=replay.record.id, same=not differences, differences=differences, choices=choices)


def _replayed(position: Logprobs, top: int) -> ReplayedToken:
    token, entry = next(iter(position.items()))
    ranked = [_ranked(other, each) for other, each in writers.top(position, top)]
    return ReplayedToken(**_ranked(token, entry).model_dump(), top_logprobs=ranked)


def _ranked(token: int, entry: Logprob) -> RankedToken:
    return RankedToken(
        token_id=token, token=entry.decoded_token, logprob=writers.finite(entry.logprob), rank=entry.rank
    )
