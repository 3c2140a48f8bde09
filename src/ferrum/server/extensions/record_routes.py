"""The routes of single requests: show their records, replay them, cancel them.

Records are written and replayed in `client/records`; here they get the form of replies.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive

from ferrum.client.async_engine import AsyncStream
from ferrum.client.records.record import Record
from ferrum.client.records.recorder import Recorder
from ferrum.client.records.replayer import Replay, check_origin, check_room
from ferrum.core.errors import RecordNotFound
from ferrum.core.types import FinishReason
from ferrum.server.chat.generation import watched
from ferrum.server.chat.turn import finish_of
from ferrum.server.common.error_replies import ApiError, CancelledError
from ferrum.server.common.http_guard import CLIENT_GONE
from ferrum.server.common.json_bodies import Body
from ferrum.server.common.json_routes import ignored, reply
from ferrum.server.common.openai_errors import BODY_ERRORS, ERRORS, error_reply
from ferrum.server.common.served_model import part_id
from ferrum.server.common.service import Service
from ferrum.server.common.top_tokens import MAX_TOP_LOGPROBS, TopTokens, check_top_tokens
from ferrum.server.extensions.record_replies import (
    RecordedRequests,
    ReplayedRequest,
    ReplayedRequests,
    recorded_request,
    replayed_request,
)
from ferrum.server.openai import replies

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
                again = Replay(each, top)
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

    @router.delete("/v1/requests/{request_id}", responses={200: {"model": replies.Cancelled}, **ERRORS})
    async def cancel(request_id: str, request: Request) -> Response:
        """Cancel a live request of the same API key, by reply id or `request_id`."""
        name = service.cancel(request_id, request.state.tenant)
        return reply(replies.Cancelled(id=name, object="request", cancelled=True))


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
