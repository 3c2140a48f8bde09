"""The routes of sessions: texts that grow, fork and are truncated, without computing tokens twice.

The sessions themselves are kept in `sessions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ferrum.engine.input_processor import context_overflow
from ferrum.engine.request_output import Delta
from ferrum.engine.session import GrowingText
from ferrum.server.common import field_rules
from ferrum.server.common.field_rules import Integer, Items, JsonInteger, Rule, TokenId, one_of, rule
from ferrum.server.common.generation import Generation
from ferrum.server.common.json_bodies import Body, Reply
from ferrum.server.common.json_routes import generate, ignored, reply
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.reply_builder import ReplyHeader
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service
from ferrum.server.extensions.sessions import HeldSession, Sessions
from ferrum.server.openai.bodies import MAX_LOGPROBS, CompletionRequest, FewTopTokens, GenerationBody
from ferrum.server.openai.completions import CompletionReplyBuilder, check_completion
from ferrum.server.openai.replies import CompletionReply
from ferrum.server.openai.routes import BODY_ERRORS, ERRORS, error_reply, generated

CONFLICT: Final[dict[int | str, dict[str, Any]]] = {409: error_reply("The session is generating.")}


class SessionBody(Body):
    """The body of /v1/sessions/{id}/append."""

    prompt: str | Items[TokenId] = Field(description="A text or its token ids.", json_schema_extra=field_rules.TEXT)


class NewSession(Body):
    """The body of POST /v1/sessions."""

    model: str | None = Field(default=None, description="A name from /v1/models.")
    prompt: str | Items[TokenId] | None = Field(
        default=None,
        description="Initial text or token ids.",
        json_schema_extra={"anyOf": [{"type": "null"}, field_rules.TEXT]},
    )


class ForkRequest(Body):
    """The body of /v1/sessions/{id}/fork."""


class TruncateRequest(Body):
    """The body of /v1/sessions/{id}/truncate."""

    length: Annotated[int, Integer(0)] = Field(description="Number of tokens to keep.")


class SessionGenerateRequest(GenerationBody):
    """The body of /v1/sessions/{id}/generate: a completion whose prompt is the session."""

    RULES: ClassVar[Sequence[Rule]] = (
        *GenerationBody.RULES,
        rule("n", "must be 1 in a session; fork it for several", one_of("n", None, 1)),
    )
    NO_OPS = MappingProxyType({**GenerationBody.NO_OPS, "add_special_tokens": "a session's tokens are used unchanged"})
    REFUSED = MappingProxyType(
        {
            **GenerationBody.REFUSED,
            "best_of": "a session has one continuation; fork it for several",
            "suffix": "a session is continued at its end only",
            "truncate_prompt_tokens": "use the session's truncate route",
        }
    )

    n: JsonInteger | None = Field(default=None, description="Must be 1.")
    logprobs: FewTopTokens | None = Field(
        default=None, description=f"Log-probabilities of each token and this many top tokens, 0 to {MAX_LOGPROBS}."
    )


class SessionReply(Reply):
    """A session; `expires_in` is its remaining idle time in seconds."""

    id: str
    object: Literal["session"]
    created: int
    model: str
    length: int
    expires_in: float
    token_ids: list[int] | None = None
    text: str | None = None


class SessionList(Reply):
    """The reply of GET /v1/sessions."""

    object: Literal["list"]
    data: list[SessionReply]


class SessionDeleted(Reply):
    """The reply of DELETE /v1/sessions/{id}."""

    id: str
    object: Literal["session"]
    deleted: bool


def add_session_routes(router: APIRouter, service: Service) -> None:
    """Add the routes."""
    sessions = Sessions(service.config.max_sessions, service.config.session_seconds)
    _add_holding(router, service, sessions)
    _add_growing(router, service, sessions)


def _add_holding(router: APIRouter, service: Service, sessions: Sessions) -> None:
    """Add the routes that create, show and delete sessions."""
    answer = partial(_session_reply, service, sessions)

    @router.post("/v1/sessions", responses={200: {"model": SessionReply}, **BODY_ERRORS})
    async def create(body: NewSession, request: Request) -> Response:
        """Create a session."""
        service.check_ready()
        model = service.model(body.model)
        headers = ignored(service, body)
        text = await _appended(service, GrowingText(model.client.tokenizer), body.prompt or ())
        return answer(sessions.add(request.state.tenant, text), headers)

    @router.get("/v1/sessions", responses={200: {"model": SessionList}, 401: ERRORS[401], 503: ERRORS[503]})
    async def every(request: Request) -> Response:
        """List the sessions of the API key, without marking them as used."""
        its = [_described(service, sessions, each) for each in sessions.of(request.state.tenant)]
        return reply(SessionList(object="list", data=its))

    @router.get("/v1/sessions/{session_id}", responses={200: {"model": SessionReply}, **ERRORS})
    async def one(session_id: str, request: Request) -> Response:
        """Return a session with its tokens and text."""
        held = sessions.get(request.state.tenant, session_id)
        # Decoding a long text takes 30 ms, too long for the event loop. The fork is safe from changes meanwhile.
        copy = replace(held, text=held.text.fork())
        return await asyncio.to_thread(lambda: reply(_described(service, sessions, copy, whole=True)))

    @router.delete("/v1/sessions/{session_id}", responses={200: {"model": SessionDeleted}, **ERRORS})
    async def delete(session_id: str, request: Request) -> Response:
        """Delete a session; what it is generating is finished and discarded."""
        sessions.remove(request.state.tenant, session_id)
        return reply(SessionDeleted(id=session_id, object="session", deleted=True))


def _add_growing(router: APIRouter, service: Service, sessions: Sessions) -> None:
    """Add the routes that change sessions."""
    answer = partial(_session_reply, service, sessions)
    changed: dict[int | str, dict[str, Any]] = {200: {"model": SessionReply}, **BODY_ERRORS, **CONFLICT}

    @router.post("/v1/sessions/{session_id}/append", responses=changed)
    async def append(session_id: str, body: SessionBody, request: Request) -> Response:
        """Append a text or token ids; only the first text gets special tokens."""
        headers = ignored(service, body)
        held = sessions.get(request.state.tenant, session_id)
        held.check_idle()
        begun = held.text.token_ids
        text = await _appended(service, held.text.fork(), body.prompt)
        with sessions.generating(held, begun):
            held.text = text
        return answer(held, headers)

    @router.post("/v1/sessions/{session_id}/truncate", responses=changed)
    async def truncate(session_id: str, body: TruncateRequest, request: Request) -> Response:
        """Truncate a session to its first tokens."""
        headers = ignored(service, body)
        held = sessions.get(request.state.tenant, session_id)
        held.check_idle()
        held.text.truncate(body.length)
        return answer(held, headers)

    @router.post("/v1/sessions/{session_id}/fork", responses={200: {"model": SessionReply}, **BODY_ERRORS})
    async def fork(session_id: str, body: ForkRequest, request: Request) -> Response:
        """Copy a session; one that is generating is copied as it was before."""
        headers = ignored(service, body)
        tenant = request.state.tenant
        return answer(sessions.add(tenant, sessions.get(tenant, session_id).text.fork()), headers)

    @router.post("/v1/sessions/{session_id}/generate", responses={**generated(CompletionReply), **CONFLICT})
    async def go_on(session_id: str, body: SessionGenerateRequest, request: Request) -> Response:
        """Generate a completion and append it to the session; on failure it is unchanged."""
        held = sessions.get(request.state.tenant, session_id)
        held.check_idle()
        begun = held.text.token_ids
        make = partial(_session_builder, held, begun)
        respond = partial(SessionGeneration, sessions, held, begun)
        return await generate(service, request, body, "cmpl", make, respond, extra_bytes=len(begun))


def _described(service: Service, sessions: Sessions, held: HeldSession, *, whole: bool = False) -> SessionReply:
    """Return a session as clients see it, with its tokens and text if `whole`."""
    described = SessionReply(
        id=held.id,
        object="session",
        created=held.created,
        model=service.model().name,
        length=len(held.text),
        expires_in=sessions.expires_in(held),
    )
    if whole:
        described.token_ids = list(held.text.token_ids)
        described.text = None if service.model().client.tokenizer is None else held.text.text
    return described


def _session_reply(
    service: Service, sessions: Sessions, held: HeldSession, headers: Mapping[str, str] = MappingProxyType({})
) -> Response:
    response = reply(_described(service, sessions, held))
    response.headers.update(headers)
    return response


async def _appended(service: Service, text: GrowingText, prompt: str | Sequence[int]) -> GrowingText:
    """Return the text with a prompt appended.

    Raises:
        RequestError: an invalid token id, or more tokens than the context.
    """

    model = service.model()

    def grow() -> GrowingText:
        grown = text.append(prompt)
        model.client.input_processor.check_tokens(grown.token_ids, param="prompt")
        if len(grown) > model.context:
            raise context_overflow(len(grown), 0, model.context, "prompt")
        return grown

    return await service.worker_pools.run(len(prompt), grow)


def _session_builder(
    held: HeldSession,
    begun: tuple[int, ...],
    model: ServedModel,
    body: SessionGenerateRequest,
    caller: Caller,
    header: ReplyHeader,
) -> SessionReplyBuilder:
    """Check a body and return the builder of its reply. Raises as `check_completion`."""
    given = {name: getattr(body, name) for name in SessionGenerateRequest.model_fields}
    completion = CompletionRequest.model_construct(**given, prompt=list(begun))
    checked = check_completion(model, completion, caller, header.id)
    return SessionReplyBuilder(held, header, completion, checked, model.client.tokenizer)


class SessionReplyBuilder(CompletionReplyBuilder):
    """A builder of a session's completion, whose tokens join the session at the end."""

    def __init__(self, held: HeldSession, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._held = held
        self._tokens: list[int] = []

    def add(self, place: int, delta: Delta) -> None:
        super().add(place, delta)
        self._tokens += delta.token_ids
        if delta.finish_reason is not None:
            self._held.text.append(self._tokens)


class SessionGeneration(Generation):
    """The response of a session's completion; the session is locked while it runs."""

    def __init__(
        self,
        sessions: Sessions,
        held: HeldSession,
        begun: tuple[int, ...],
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._generating = partial(sessions.generating, held, begun)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. Raises ApiError, 409, if another request came first."""
        with self._generating():
            await super().__call__(scope, receive, send)
