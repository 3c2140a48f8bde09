"""The routes of the Responses API: generating, and fetching, listing, ending and deleting what is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from pydantic_core import from_json, to_json
from starlette.responses import Response, StreamingResponse

from ferrum.server.chat.ask import asked, prompt_length
from ferrum.server.chat.generation import STREAM_HEADERS, EventWriter, Generation, generate
from ferrum.server.chat.turn import CACHE, ReplyHeader
from ferrum.server.common import field_rules
from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import ApiError, invalid
from ferrum.server.common.json_routes import ignored, reply
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.openai_errors import BODY_ERRORS, ERRORS, generated, openai_error
from ferrum.server.common.reply_store import ReplyStore, StoredReply, Turn, all_items
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service
from ferrum.server.responses.ask import response_ask
from ferrum.server.responses.background import BackgroundRun, EventLog
from ferrum.server.responses.fields import (
    ENCRYPTED,
    InputTokensRequest,
    PromptBody,
    ResponsesRequest,
    unknown_includes,
)
from ferrum.server.responses.replies import InputTokens, ItemList, ResponseDeleted, ResponseReply, ResponsesBuilder
from ferrum.server.responses.stored import (
    PREFIX,
    get,
    page,
    previous_turn,
    stored_items,
    with_reasoning,
    without_references,
)

RESPONSES: Final = Dialect(paths=("/v1/responses",), ids=("resp_",), error=openai_error)
"""The wire form: named events, errors as OpenAI's other routes have them, no end mark."""

MAX_PAGE: Final = 100
Include = Annotated[
    list[str], Query(default_factory=list, description=f"`{ENCRYPTED}`: reasoning in a form to send back.")
]


def add_responses_routes(router: APIRouter, service: Service) -> None:
    """Add the routes."""
    store = service.replies
    _add_generating(router, service, store)
    _add_fetching(router, service, store)
    _add_ending(router, store)


def _add_generating(router: APIRouter, service: Service, store: ReplyStore) -> None:
    @router.post("/v1/responses", responses=generated(ResponseReply))
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Generate the next items of a conversation: reasoning, a message, calls of tools."""
        before, size = _completed(service, store, request, body)
        make = partial(responses_builder, store, before)
        respond = partial(_start, store) if body.background else ResponsesGeneration
        return await generate(service, request, body, PREFIX, make, respond, extra_bytes=size)

    @router.post("/v1/responses/input_tokens", responses={200: {"model": InputTokens}, **BODY_ERRORS})
    async def input_tokens(body: InputTokensRequest, request: Request) -> Response:
        """Count the tokens of a prompt."""
        before, size = _completed(service, store, request, body)
        model = service.model(body.model)
        headers = ignored(service, body, model)

        def work() -> InputTokens:
            ask, _ = response_ask(model.client, body, all_items(before))
            return InputTokens(object="response.input_tokens", input_tokens=prompt_length(model.client, ask))

        length = len(await request.body()) + size
        made = reply(await service.worker_pools.run(length, work, images=body.has_images()))
        made.headers.update(headers)
        return made


def responses_builder(
    store: ReplyStore,
    before: Turn | None,
    model: ServedModel,
    body: ResponsesRequest,
    caller: Caller,
    header: ReplyHeader,
) -> ResponsesBuilder:
    """Check a body and return the builder of its reply, which stores it unless the body says otherwise.

    Args:
        before: the turn of the response that it continues.

    Raises:
        RequestError, ApiError, Unsupported: a field that cannot be served, by its name.
    """
    earlier = all_items(before)
    ask, offered = response_ask(model.client, body, earlier)
    made = asked(model, ask, caller, header.id)
    turn = Turn(before, to_json(stored_items(body.items, header.id, {each["id"] for each in earlier})))
    stored = StoredReply(caller.tenant, header.id, turn, background=bool(body.background))
    keep = None if body.store is False else partial(_keep, store, stored)
    return ResponsesBuilder(header, body, made, offered, stored, keep)


def _keep(store: ReplyStore, stored: StoredReply, reply: ResponseReply) -> None:
    store.finish(stored, reply.json_bytes(), to_json(reply.output))


class ResponsesGeneration(Generation):
    """The response to a request; a failure after the first event ends the stream as `response.failed`."""

    def failure(self, writer: EventWriter, error: ApiError) -> bytes:
        builder = self._builder
        assert isinstance(builder, ResponsesBuilder)
        return b"".join(writer.event(each.EVENT, each.json_bytes()) for each in builder.failure(error))


def _completed(service: Service, store: ReplyStore, request: Request, body: PromptBody) -> tuple[Turn | None, int]:
    """Replace references in a body, and return the turn that it continues with the bytes of all earlier turns.

    Raises:
        ApiError, RequestError: a response or an item is not stored.
    """
    service.check_ready()
    tenant = request.state.tenant
    if isinstance(body.input, list):
        body.input = without_references(store, tenant, body.input)
    if body.previous_response_id is None:
        return None, 0
    before = previous_turn(store, tenant, body.previous_response_id)
    return before, sum(each.size for each in before.back())


def _start(
    store: ReplyStore,
    service: Service,
    model: ServedModel,
    builder: ResponsesBuilder,
    *,
    dialect: Dialect,
    stream: bool,
    tenant: str,
    headers: Mapping[str, str],
) -> Response:
    """Queue a response in the background and return it, or its events. Raises ApiError, FerrumError: no room."""
    stored, log = builder.stored, EventLog() if stream else None
    with ExitStack() as stack:
        running = stack.enter_context(service.run(model, builder.id, builder.requests, tenant))
        run = BackgroundRun(store, stored, builder, running, dialect, log)
        stored.run, stored.log = run, log
        try:
            store.begin(stored)
        except BaseException:
            stored.run = None  # it refers back to the response
            raise
        run.begin()
        service.lasting_tasks.start(run.follow(stack.pop_all()))
    # What the prefix cache has is not known yet.
    headers = {**headers, **{name: value for name, value in builder.headers(None).items() if name != CACHE}}
    if log is None:
        return _json(stored.shown(), headers)
    return _events(service, log, 0, dialect, headers)


def _add_fetching(router: APIRouter, service: Service, store: ReplyStore) -> None:
    events = {"text/event-stream": {"schema": field_rules.EVENT}}
    whole = {"model": ResponseReply, "content": events, "description": "The response, or its events."}

    @router.get("/v1/responses/{response_id}", responses={200: whole, **ERRORS})
    async def one_response(
        response_id: str,
        request: Request,
        include: Include,
        stream: Annotated[
            bool, Query(description="Send the events; for those created with background, stream.")
        ] = False,
        starting_after: Annotated[int, Query(description="Number of the last event that is known.", ge=-1)] = -1,
    ) -> Response:
        """Return a stored response, or its events once more."""
        stored = get(store, request.state.tenant, response_id)
        included, headers = _included(request, include)
        if stream:
            return _events(service, _log(stored, starting_after), starting_after + 1, request.state.dialect, headers)
        shown = stored.shown()
        if included:
            fields = from_json(shown)
            shown = to_json({**fields, "output": with_reasoning(fields["output"])})
        return _json(shown, headers)

    @router.get("/v1/responses/{response_id}/input_items", responses={200: {"model": ItemList}, **ERRORS})
    async def input_items(
        response_id: str,
        request: Request,
        include: Include,
        limit: Annotated[int, Query(description="Number of items.", ge=1, le=MAX_PAGE)] = 20,
        order: Annotated[Literal["asc", "desc"], Query(description="desc: the last item first.")] = "desc",
        after: Annotated[str, Query(description="Id of the last item of the page before.")] = "",
    ) -> Response:
        """List the items that a response was generated from, those of earlier responses included."""
        turn = get(store, request.state.tenant, response_id).turn
        included, headers = _included(request, include)

        def work() -> Response:
            items = turn.input_items()
            return reply(page(with_reasoning(items) if included else items, after, limit, order))

        made = await service.worker_pools.run(sum(each.size for each in turn.back()), work)
        made.headers.update(headers)
        return made


def _included(request: Request, include: list[str]) -> tuple[bool, dict[str, str]]:
    """Return whether encrypted reasoning is wanted, and the header that names other things without effect."""
    wanted = [*include, *request.query_params.getlist("include[]")]  # as the official clients write lists
    names = unknown_includes(wanted, "include")
    if "include_obfuscation" in request.query_params:
        names.append("include_obfuscation")
    return ENCRYPTED in wanted, {"x-ferrum-ignored": ", ".join(names)} if names else {}


def _log(stored: StoredReply, after: int) -> EventLog:
    """Return the events of a response. Raises RequestError, ApiError: there are none, or not that one any more."""
    if not isinstance(stored.log, EventLog):
        raise invalid("stream", "events are kept of responses created with background = true and stream = true")
    stored.log.check(after + 1)
    return stored.log


def _add_ending(router: APIRouter, store: ReplyStore) -> None:
    @router.post("/v1/responses/{response_id}/cancel", responses={200: {"model": ResponseReply}, **ERRORS})
    async def cancel_response(response_id: str, request: Request) -> Response:
        """End a response in the background; one that has ended stays as it is."""
        stored = get(store, request.state.tenant, response_id)
        if not stored.background:
            reason = "was not created with background = true; close its connection, or DELETE /v1/requests/{id}"
            raise invalid("response_id", reason)
        if stored.run is not None:
            stored.run.cancel()
        return _json(stored.shown(), {})

    @router.delete("/v1/responses/{response_id}", responses={200: {"model": ResponseDeleted}, **ERRORS})
    async def delete_response(response_id: str, request: Request) -> Response:
        """Delete a stored response, and end it if it is in progress; later responses keep its items."""
        store.delete(get(store, request.state.tenant, response_id))
        return reply(ResponseDeleted(id=response_id, object="response", deleted=True))


def _json(data: bytes, headers: Mapping[str, str]) -> Response:
    return Response(data, headers=dict(headers), media_type="application/json")


def _events(service: Service, log: EventLog, number: int, dialect: Dialect, headers: Mapping[str, str]) -> Response:
    """Return the response with the events from a number on."""

    async def parts() -> AsyncGenerator[bytes, None]:
        try:
            async for data in log.read(number, service.config.keep_alive_seconds):
                yield dialect.keep_alive if data is None else data
        except ApiError as error:  # a slow reader, of whose events too many were dropped
            yield dialect.event % {b"name": b"error", b"json": dialect.error(error)}

    response = StreamingResponse(parts(), headers={**STREAM_HEADERS, **headers}, media_type=None)
    response.headers["content-type"] = dialect.stream_type
    return response
