"""The routes of single requests: show their records, replay them, cancel them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive

from ferrum.client.async_engine import AsyncStream
from ferrum.client.records.explain import Passage, passages
from ferrum.client.records.image_store import recorded_images
from ferrum.client.records.record import Record, request_dict
from ferrum.client.records.recorder import Recorder
from ferrum.client.records.replayer import Difference, Replay, check_origin, check_room
from ferrum.client.request_output import Logprob, Logprobs
from ferrum.core.errors import RecordNotFound
from ferrum.core.types import FinishReason
from ferrum.images.decoded_image import DecodedImage
from ferrum.server.chat.ask import check_top_tokens
from ferrum.server.chat.generation import watched
from ferrum.server.chat.turn import finish_of
from ferrum.server.common.error_replies import ApiError, CancelledError
from ferrum.server.common.http_guard import CLIENT_GONE
from ferrum.server.common.json_bodies import Body, Reply
from ferrum.server.common.json_routes import ignored, reply
from ferrum.server.common.openai_errors import BODY_ERRORS, ERRORS, error_reply
from ferrum.server.common.served_model import part_id, without_directories
from ferrum.server.common.service import Service
from ferrum.server.common.top_tokens import MAX_TOP_LOGPROBS, TopTokens, finite, top
from ferrum.text.tokenizer import Tokenizer

# Replies


class Cancelled(Reply):
    """The reply of DELETE /v1/requests/{id}."""

    id: str
    object: Literal["request"]
    cancelled: bool


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
        choices=[_recorded_choice(record, choice, tokenizer) for choice in record.request.choices],
    )


def _recorded_choice(record: Record, index: int, tokenizer: Tokenizer | None) -> RecordedChoice:
    end = record.end_of(index)
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


# Routes


CONFLICT: Final[dict[int | str, dict[str, Any]]] = {
    409: error_reply("It was recorded with another model or other numerics.")
}


class ReplayRequest(Body):
    """The body of /v1/requests/{id}/replay."""

    top_logprobs: TopTokens | None = Field(
        default=None, description=f"Number of top tokens per position, 0 to {MAX_TOP_LOGPROBS}."
    )


def find_records(recorder: Recorder | None, tenant: str, ids: Sequence[str]) -> list[Record]:
    """Return the records of a tenant's request, one per prompt.

    Args:
        ids: the id that was asked for, then others that its reply may have.

    Raises:
        ApiError: 404.
        RecordDamaged: a record is corrupt.
    """
    if recorder is None:
        raise ApiError(
            404, "requests are not recorded; start the server with --record", code=RecordNotFound.code, param="id"
        )
    for name in ids:
        bodies = (_alone(recorder, tenant, name), _several(recorder, tenant, name))
        if found := max(bodies, key=lambda records: records[0].time if records else -math.inf):
            return found
    raise ApiError(404, f"no request {ids[0]!r} is recorded", code=RecordNotFound.code, param="id")


def _alone(recorder: Recorder, tenant: str, id: str) -> list[Record]:
    try:
        return [recorder.find(tenant, id)]
    except RecordNotFound:
        return []


def _several(recorder: Recorder, tenant: str, id: str) -> list[Record]:
    """Return the records of the numbered prompts of the last body with several.

    Records older than the first belong to an earlier body that had more prompts.
    """
    found: list[Record] = []
    while its := _alone(recorder, tenant, part_id(id, len(found))):
        if found and its[0].time < found[0].time:
            break
        found += its
    return found


def add_record_routes(router: APIRouter, service: Service) -> None:
    """Add the routes."""

    @router.get("/v1/requests/{request_id}", responses={200: {"model": RecordedRequests}, **ERRORS})
    async def recorded(request_id: str, request: Request) -> Response:
        """Return the records of a request of the same API key, and its schedule."""
        records = await _records(service, request_id, request)
        tokenizer = service.model().client.tokenizer
        explained = await asyncio.to_thread(lambda: [recorded_request(each, tokenizer) for each in records])
        live = service.live_name(request_id, request.state.tenant) is not None
        return reply(RecordedRequests(id=request_id, object="request", live=live, records=explained))

    @router.post(
        "/v1/requests/{request_id}/replay",
        responses={200: {"model": ReplayedRequests}, **BODY_ERRORS, **CONFLICT},
    )
    async def replay(request_id: str, body: ReplayRequest, request: Request) -> Response:
        """Replay a recorded request among live ones; compare every token and log-probability."""
        top = body.top_logprobs or 0
        check_top_tokens("top_logprobs", top, service.config.max_logprobs)
        headers = ignored(service, body)
        model, caller = service.begin(request)
        deadline = None if caller.deadline is None else time.monotonic() + caller.deadline
        records = await _records(service, request_id, request)
        done: list[ReplayedRequest] = []
        for each in records:
            await _check_origin(service, each)
            check_room(each, model.context)
        with service.reserve(model, 1, caller.tenant) as slots:
            for each in records:
                again = Replay(each, top, await _images(service, each))
                name = _free_name(service, again.request.request_id, caller.tenant)
                wanted = replace(again.request, request_id=name, deadline=deadline)
                with service.run(model, wanted.request_id, [wanted], caller.tenant, slots) as running:
                    if not await _followed(running, again, request.receive):
                        return Response(status_code=CLIENT_GONE)
                done.append(await asyncio.to_thread(replayed_request, again, top))
        same = all(each.same for each in done)
        response = reply(ReplayedRequests(id=request_id, object="request.replay", same=same, replays=done))
        response.headers.update(headers)
        return response

    @router.delete("/v1/requests/{request_id}", responses={200: {"model": Cancelled}, **ERRORS})
    async def cancel(request_id: str, request: Request) -> Response:
        """Cancel a live request of the same API key, by reply id or `request_id`."""
        name = service.cancel(request_id, request.state.tenant)
        return reply(Cancelled(id=name, object="request", cancelled=True))


async def _images(service: Service, record: Record) -> tuple[DecodedImage, ...]:
    """Return the images of a record. Raises as `recorded_images`."""
    recorder = service.model().client.recorder
    if recorder is None or not record.images:
        return ()
    return await asyncio.to_thread(recorded_images, recorder.files.directory, record.images)


def _free_name(service: Service, name: str, tenant: str) -> str:
    """Return the name, or a similar one while a request with it runs."""
    while service.live_name(name, tenant) is not None:
        name += "~"
    return name


async def _records(service: Service, request_id: str, request: Request) -> list[Record]:
    recorder = service.model().client.recorder
    return await asyncio.to_thread(find_records, recorder, request.state.tenant, service.reply_ids(request_id))


async def _check_origin(service: Service, record: Record) -> None:
    recorder = service.model().client.recorder
    assert recorder is not None  # it found the record
    check_origin(record.origin, await asyncio.to_thread(recorder.origin))


async def _followed(running: AsyncStream, again: Replay, receive: Receive) -> bool:
    """Add the deltas of a running replay; return whether its client is still connected.

    Raises:
        FerrumError: it ended before it could be compared.
    """
    gone = asyncio.Event()
    async with watched(receive, gone.set, running):
        try:
            async for _, delta in running:
                if delta.finish_reason is not FinishReason.ERROR:
                    finish_of(delta)
                again.push(delta)
        except CancelledError:
            if not gone.is_set():
                raise
    return not gone.is_set()
