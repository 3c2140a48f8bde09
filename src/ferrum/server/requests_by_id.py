"""The routes of single requests: what is recorded of them, running them again, ending them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive

from ferrum.core.types import FinishReason
from ferrum.engine.async_stream import Running
from ferrum.engine.records.record import Record
from ferrum.engine.records.replayer import Replay, check_origin, check_room
from ferrum.server import replies, schemas
from ferrum.server.errors import CancelledError
from ferrum.server.generation import watched
from ferrum.server.guard import CLIENT_GONE
from ferrum.server.prepare import check_top_tokens
from ferrum.server.recorded import (
    RecordedRequests,
    ReplayedRequest,
    ReplayedRequests,
    find_records,
    recorded_request,
    replayed_request,
)
from ferrum.server.requests import MAX_TOP_LOGPROBS, Body
from ferrum.server.routes import BODY_ERRORS, ERRORS, caller_of, error_reply, ignored, reply
from ferrum.server.schemas import Whole
from ferrum.server.service import Service
from ferrum.server.writers import finish_of

CONFLICT: Final[dict[int | str, dict[str, Any]]] = {409: error_reply("It was recorded by another model or numerics.")}


class ReplayRequest(Body):
    """The body of /v1/requests/{id}/replay."""

    top_logprobs: Whole | None = Field(
        default=None,
        description=f"So many top tokens of each position, 0 to {MAX_TOP_LOGPROBS}.",
        json_schema_extra=schemas.top_tokens(0, MAX_TOP_LOGPROBS),
    )


def add_requests(router: APIRouter, service: Service) -> None:
    """Add the routes."""

    @router.get("/v1/requests/{request_id}", responses={200: {"model": RecordedRequests}, **ERRORS})
    async def recorded(request_id: str, request: Request) -> Response:
        """What was recorded of a request of the same key, and its schedule explained."""
        records = await _records(service, request_id, request)
        tokenizer = service.engine.front.tokenizer
        explained = await asyncio.to_thread(lambda: [recorded_request(each, tokenizer) for each in records])
        live = service.live_name(request_id, request.state.tenant) is not None
        return reply(RecordedRequests(id=request_id, object="request", live=live, records=explained))

    @router.post(
        "/v1/requests/{request_id}/replay",
        responses={200: {"model": ReplayedRequests}, **BODY_ERRORS, **CONFLICT},
    )
    async def replay(request_id: str, body: ReplayRequest, request: Request) -> Response:
        """Run a recorded request again, among all others, and compare every token and log-probability."""
        top = body.top_logprobs or 0
        check_top_tokens("top_logprobs", top, MAX_TOP_LOGPROBS, service.config.max_logprobs)
        headers = ignored(body, strict=service.config.strict)
        caller = caller_of(service, request)
        deadline = None if caller.deadline is None else time.monotonic() + caller.deadline
        records = await _records(service, request_id, request)
        done: list[ReplayedRequest] = []
        for each in records:
            await _check_origin(service, each)
            check_room(each, service.context)
        with service.hold(1, caller.tenant) as places:
            for each in records:
                again = Replay(each, top)
                name = _free_name(service, again.request.request_id, caller.tenant)
                wanted = replace(again.request, request_id=name, deadline=deadline)
                with service.run(wanted.request_id, [wanted], caller.tenant, places) as running:
                    if not await _followed(running, again, request.receive):
                        return Response(status_code=CLIENT_GONE)
                done.append(await asyncio.to_thread(replayed_request, again, top))
        same = all(each.same for each in done)
        response = reply(ReplayedRequests(id=request_id, object="request.replay", same=same, replays=done))
        response.headers.update(headers)
        return response

    @router.delete("/v1/requests/{request_id}", responses={200: {"model": replies.Cancelled}, **ERRORS})
    async def cancel(request_id: str, request: Request) -> Response:
        """End a live request of the same key, by the id of its reply or its own `request_id`."""
        name = service.cancel(request_id, request.state.tenant)
        return reply(replies.Cancelled(id=name, object="request", cancelled=True))


def _free_name(service: Service, name: str, tenant: str) -> str:
    """The name, or one like it while it runs already: somebody else may want to see the same."""
    while service.live_name(name, tenant) is not None:
        name += "~"
    return name


async def _records(service: Service, request_id: str, request: Request) -> list[Record]:
    recorder = service.engine.front.router.recorder
    return await asyncio.to_thread(find_records, recorder, request.state.tenant, request_id)


async def _check_origin(service: Service, record: Record) -> None:
    recorder = service.engine.front.router.recorder
    assert recorder is not None  # it has found the record
    check_origin(record.origin, await asyncio.to_thread(recorder.origin))


async def _followed(running: Running, again: Replay, receive: Receive) -> bool:
    """Take in what comes of a request that runs again; whether its client is still there.

    Raises:
        FerrumError: it was ended before it could be compared.
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
