"""The routes of sessions: texts that grow, branch and go back, of which nothing is computed twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ferrum.core.errors import ContextOverflow
from ferrum.engine.model_client import ModelClient
from ferrum.engine.request_output import Delta
from ferrum.engine.session import GrowingText
from ferrum.server import openapi_rules
from ferrum.server.completions import CompletionReplyBuilder, completion_job
from ferrum.server.error_replies import invalid
from ferrum.server.generation import Generation
from ferrum.server.openapi_rules import Items, TokenId, Whole
from ferrum.server.reply_bodies import CompletionReply, Reply
from ferrum.server.reply_builder import ReplyBuilder, ReplyHeader
from ferrum.server.request_bodies import MAX_LOGPROBS, Body, CompletionRequest, GenerationBody
from ferrum.server.routes import BODY_ERRORS, ERRORS, error_reply, generate, generated, ignored, reply
from ferrum.server.service import Service
from ferrum.server.sessions import HeldSession, Sessions
from ferrum.server.validation import Caller

CONFLICT: Final[dict[int | str, dict[str, Any]]] = {409: error_reply("The session is generating.")}


class SessionBody(Body):
    """A text, or its token ids."""

    prompt: str | Items[TokenId] = Field(description="A text or its token ids.", json_schema_extra=openapi_rules.TEXT)


class NewSession(Body):
    """The body of POST /v1/sessions."""

    model: str | None = Field(default=None, description="A name from /v1/models.")
    prompt: str | Items[TokenId] | None = Field(
        default=None,
        description="What it begins with: a text or its token ids.",
        json_schema_extra=openapi_rules.either({"type": "null"}, openapi_rules.TEXT),
    )


class ForkRequest(Body):
    """The body of /v1/sessions/{id}/fork."""


class TruncateRequest(Body):
    """The body of /v1/sessions/{id}/truncate."""

    length: Whole = Field(description="How many tokens are left.", json_schema_extra=openapi_rules.between(0))


class SessionGenerateRequest(GenerationBody):
    """The body of /v1/sessions/{id}/generate: that of a completion whose prompt is the session."""

    model_config = ConfigDict(json_schema_extra=openapi_rules.SESSION)
    NO_OPS = MappingProxyType(
        {**GenerationBody.NO_OPS, "add_special_tokens": "the tokens of a session are taken as they are"}
    )
    REFUSED = MappingProxyType(
        {
            **GenerationBody.REFUSED,
            "best_of": "a session goes on in one way; fork it for several",
            "suffix": "a session is gone on with at its end",
            "truncate_prompt_tokens": "a session is truncated by a route of its own",
        }
    )

    n: Whole | None = Field(default=None, description="One.", json_schema_extra=openapi_rules.between(1, 1))
    logprobs: Whole | None = Field(
        default=None,
        description=f"Report each token's and so many top ones, 0 to {MAX_LOGPROBS}.",
        json_schema_extra=openapi_rules.top_tokens(0, MAX_LOGPROBS),
    )


class SessionReply(Reply):
    """A session: how long it is, and until when it is kept if nobody uses it."""

    id: str
    object: Literal["session"]
    created: int
    model: str
    length: int
    expires_in: float
    token_ids: list[int] | None = None
    text: str | None = None


class SessionList(Reply):
    """The reply of GET /v1/sessions: those of the key."""

    object: Literal["list"]
    data: list[SessionReply]


class SessionDeleted(Reply):
    """The reply of DELETE /v1/sessions/{id}."""

    id: str
    object: Literal["session"]
    deleted: bool


def add_sessions(router: APIRouter, service: Service) -> None:
    """Add the routes."""
    sessions = Sessions(service.config.max_sessions, service.config.session_seconds)
    _add_holding(router, service, sessions)
    _add_growing(router, service, sessions)


def _add_holding(router: APIRouter, service: Service, sessions: Sessions) -> None:
    """Begin, look, drop."""
    told = partial(_told, service, sessions)

    @router.post("/v1/sessions", responses={200: {"model": SessionReply}, **BODY_ERRORS})
    async def create(body: NewSession, request: Request) -> Response:
        """Begin a session."""
        service.check_ready()
        service.check_model(body.model)
        headers = ignored(body, strict=service.config.strict)
        text = await _appended(service, GrowingText(service.client.tokenizer), body.prompt or ())
        return told(sessions.add(request.state.tenant, text), headers=headers)

    @router.get("/v1/sessions", responses={200: {"model": SessionList}, 401: ERRORS[401], 503: ERRORS[503]})
    async def every(request: Request) -> Response:
        """The sessions of the key; to ask for them uses none."""
        its = [_described(service, sessions, each) for each in sessions.of(request.state.tenant)]
        return reply(SessionList(object="list", data=its))

    @router.get("/v1/sessions/{session_id}", responses={200: {"model": SessionReply}, **ERRORS})
    async def one(session_id: str, request: Request) -> Response:
        """A session with all its tokens, and its text."""
        held = sessions.get(request.state.tenant, session_id)
        # A long text takes 30 ms, which may not hold up the streams of others; meanwhile it may grow.
        return await asyncio.to_thread(told, replace(held, text=held.text.fork()), whole=True)

    @router.delete("/v1/sessions/{session_id}", responses={200: {"model": SessionDeleted}, **ERRORS})
    async def delete(session_id: str, request: Request) -> Response:
        """Drop a session; what it generates just now is finished, and lost."""
        sessions.remove(request.state.tenant, session_id)
        return reply(SessionDeleted(id=session_id, object="session", deleted=True))


def _add_growing(router: APIRouter, service: Service, sessions: Sessions) -> None:
    """Append, generate, go back, branch."""
    told = partial(_told, service, sessions)
    changed: dict[int | str, dict[str, Any]] = {200: {"model": SessionReply}, **BODY_ERRORS, **CONFLICT}

    @router.post("/v1/sessions/{session_id}/append", responses=changed)
    async def append(session_id: str, body: SessionBody, request: Request) -> Response:
        """Add a text, or token ids. Only a text that begins a session gets special tokens of its own."""
        headers = ignored(body, strict=service.config.strict)
        held = sessions.get(request.state.tenant, session_id)
        held.check_idle()
        begun = held.text.token_ids
        text = await _appended(service, held.text.fork(), body.prompt)
        with sessions.generating(held, begun):
            held.text = text
        return told(held, headers=headers)

    @router.post("/v1/sessions/{session_id}/truncate", responses=changed)
    async def truncate(session_id: str, body: TruncateRequest, request: Request) -> Response:
        """Go back to the first tokens of the session."""
        headers = ignored(body, strict=service.config.strict)
        held = sessions.get(request.state.tenant, session_id)
        held.check_idle()
        held.text.truncate(body.length)
        return told(held, headers=headers)

    @router.post("/v1/sessions/{session_id}/fork", responses={200: {"model": SessionReply}, **BODY_ERRORS})
    async def fork(session_id: str, body: ForkRequest, request: Request) -> Response:
        """Another session that goes on from here by itself; from one that is generating, as it was before."""
        headers = ignored(body, strict=service.config.strict)
        tenant = request.state.tenant
        return told(sessions.add(tenant, sessions.get(tenant, session_id).text.fork()), headers=headers)

    @router.post("/v1/sessions/{session_id}/generate", responses={**generated(CompletionReply), **CONFLICT})
    async def go_on(session_id: str, body: SessionGenerateRequest, request: Request) -> Response:
        """Continue a session: the completion of all its tokens, which joins it. What fails leaves it as it was."""
        held = sessions.get(request.state.tenant, session_id)
        held.check_idle()
        begun = held.text.token_ids
        make = partial(_session_job, held, begun)
        respond = partial(SessionGeneration, sessions, held, begun)
        return await generate(service, request, body, "cmpl", make, respond, held=len(begun))


def _described(service: Service, sessions: Sessions, held: HeldSession, **more: Any) -> SessionReply:
    return SessionReply(
        id=held.id,
        object="session",
        created=held.created,
        model=service.model,
        length=len(held.text),
        expires_in=sessions.expires_in(held),
        **more,
    )


def _told(
    service: Service,
    sessions: Sessions,
    held: HeldSession,
    *,
    whole: bool = False,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    """A session as a reply, with all its tokens where the whole is asked for."""
    more: dict[str, Any] = {}
    if whole:
        has_text = service.client.tokenizer is not None
        more = {"token_ids": list(held.text.token_ids), "text": held.text.text if has_text else None}
    response = reply(_described(service, sessions, held, **more))
    response.headers.update(headers)
    return response


async def _appended(service: Service, text: GrowingText, prompt: str | Sequence[int]) -> GrowingText:
    """The text with more at its end.

    Raises:
        RequestError: an id that the model does not have, or more tokens than its context.
    """

    def grow() -> GrowingText:
        grown = text.append(prompt)
        service.client.input_processor.check_tokens(grown.token_ids, param="prompt")
        if len(grown) > service.context:
            raise ContextOverflow(f"{len(grown)} tokens are more than the context of {service.context}", param="prompt")
        return grown

    return await service.worker_pools.run(len(prompt), grow)


def _session_job(
    held: HeldSession,
    begun: tuple[int, ...],
    client: ModelClient,
    context: int,
    body: SessionGenerateRequest,
    caller: Caller,
    head: ReplyHeader,
    name: str,
) -> SessionReplyBuilder:
    """The completion of a session's tokens; see `completion_job`."""
    if body.n not in (None, 1):
        raise invalid("n", "must be 1 in a session; fork it for several")
    given = {name: getattr(body, name) for name in SessionGenerateRequest.model_fields}
    completion = CompletionRequest.model_construct(**given, prompt=list(begun))
    return SessionReplyBuilder(held, completion_job(client, context, completion, caller, head, name))


class SessionReplyBuilder:
    """A completion whose tokens join a session when it has ended well. See `ReplyBuilder`."""

    def __init__(self, held: HeldSession, job: CompletionReplyBuilder) -> None:
        self._held = held
        self._job = job
        self._tokens: list[int] = []
        self.id = job.id
        self.requests = job.requests
        self.tally = job.tally
        self.uniform = False  # every token is kept
        self.end = job.end
        self.fold = job.fold

    def push(self, place: int, delta: Delta) -> Iterator[Reply]:
        """See `ReplyBuilder`."""
        yield from self._job.push(place, delta)
        self._tokens += delta.token_ids
        if delta.finish_reason is not None:
            self._held.text.append(self._tokens)


class SessionGeneration(Generation):
    """The response to a session's job: while it runs, nothing else may change the session."""

    def __init__(
        self,
        sessions: Sessions,
        held: HeldSession,
        begun: tuple[int, ...],
        service: Service,
        job: ReplyBuilder,
        **options: Any,
    ) -> None:
        super().__init__(service, job, **options)
        self._generating = partial(sessions.generating, held, begun)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `Generation`. Raises ApiError, 409, where another request was faster."""
        with self._generating():
            await super().__call__(scope, receive, send)
