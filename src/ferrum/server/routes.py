"""The routes, each a few lines: check, do, reply."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Coroutine
from email.message import Message as Mail
from importlib.metadata import version as installed
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic_core import from_json
from starlette.responses import PlainTextResponse, Response

from ferrum.server import openapi_rules, reply_bodies
from ferrum.server.chat_completions import chat_job
from ferrum.server.completions import completion_job
from ferrum.server.embeddings import Embeddings, embedding_requests
from ferrum.server.error_replies import ApiError
from ferrum.server.generation import Generation
from ferrum.server.reply_builder import ReplyBuilder, ReplyHeader
from ferrum.server.request_bodies import (
    Body,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    GenerationBody,
    RenderRequest,
    TokenizeRequest,
)
from ferrum.server.service import Service
from ferrum.server.tokenize import detokenize, rendered, tokenize
from ferrum.server.validation import Caller, survey

QUICK_BYTES: Final = 4096
"""Bodies up to this size are prepared on the event loop: to hand them to a thread would take longer."""

_TRACEPARENT: Final = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

MAX_NAMED: Final = 32
"""Ignored fields that the header names; more are too many to read."""


class JsonRequest(Request):
    """A request whose body is JSON, whoever says otherwise, and strictly so.

    JSON here has no NaN, no lone surrogates, no numbers of thousands of digits and no nesting of hundreds of levels.
    """

    async def body(self) -> bytes:
        """The body. Raises ApiError where its content type is not JSON, or it is encoded."""
        mail = Mail()
        mail["content-type"] = self.headers.get("content-type", "")
        if mail.get_content_type() != "application/json":
            raise ApiError(415, "the content type must be application/json", code="unsupported_media_type")
        encoding = self.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            told = f"the body must come as it is, not in the content encoding {encoding!r}"
            raise ApiError(415, told, code="unsupported_media_type", headers={"accept-encoding": "identity"})
        return await super().body()

    async def json(self) -> Any:
        """The body's value. Raises ApiError where it is not JSON."""
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None


class JsonRoute(APIRoute):
    """A route that reads its body as a `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive) if self.body_field else request)

        return strict


def reply(body: reply_bodies.Reply) -> Response:
    """A whole reply."""
    return Response(body.json_bytes(), media_type="application/json")


def error_reply(text: str) -> dict[str, Any]:
    """An error's reply, for the document."""
    return {"model": reply_bodies.ErrorReply, "description": text}


ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: error_reply("The request cannot be served; `param` names the field."),
    401: error_reply("No valid API key."),
    404: error_reply("There is no such thing."),
    503: error_reply("Loading, draining or dead."),
}
BODY_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    **ERRORS,
    408: error_reply("The body, or the request, took too long."),
    413: error_reply("The body is too large."),
    415: error_reply("The body is not JSON, or compressed."),
    429: error_reply("Too many requests are live; see Retry-After."),
    499: error_reply("The request was cancelled."),
    500: error_reply("An internal error."),
}


def make_router(service: Service) -> APIRouter:
    """All routes of a server; every request is held against them in this order."""
    router = APIRouter(route_class=JsonRoute)
    _add_generation(router, service)
    _add_tokens(router, service)
    _add_probes(router, service)
    _add_models(router, service)
    return router


def _add_probes(router: APIRouter, service: Service) -> None:
    probe: dict[int | str, dict[str, Any]] = {200: {"model": reply_bodies.Health}, 503: ERRORS[503]}

    async def health() -> Response:
        """Whether requests are served now."""
        service.check_ready()
        return reply(reply_bodies.Health(status="ok"))

    for path in ("/health", "/ping", "/ready"):
        router.get(path, responses=probe)(health)
        router.head(path, include_in_schema=False)(health)  # as some load balancers ask

    @router.get("/version", responses={200: {"model": reply_bodies.Version}})
    async def version() -> Response:
        """The version of the program."""
        return reply(reply_bodies.Version(version=installed("ferrum")))

    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @router.get("/metrics", responses=text, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics; docs/metrics.md defines each."""
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/config", responses={200: {"model": reply_bodies.Config}, 401: ERRORS[401], 503: ERRORS[503]})
    async def config() -> Response:
        """The options in effect, and what they came to."""
        client, info = service.client, service.engine.info
        return reply(
            reply_bodies.Config(
                server=service.config.to_dict(),
                engine=None if client.config is None else client.config.to_dict(),
                model={
                    "name": service.model,
                    "vocab_size": info.vocab_size,
                    "max_model_len": service.context,
                    "kv_capacity": info.kv_capacity,
                    "numerics_id": info.numerics_id,
                    "chat_template": client.chat_template is not None,
                },
                sampling=dict(client.recommended),
            )
        )


def _add_models(router: APIRouter, service: Service) -> None:
    def model() -> reply_bodies.Model:
        return reply_bodies.Model(
            id=service.model,
            object="model",
            created=service.started,
            owned_by="ferrum",
            root=service.engine.info.model,
            parent=None,
            max_model_len=service.context,
        )

    listed: dict[int | str, dict[str, Any]] = {
        200: {"model": reply_bodies.ModelList},
        401: ERRORS[401],
        503: ERRORS[503],
    }

    @router.get("/v1/models", responses=listed)
    async def models() -> Response:
        """The models that are served: one."""
        return reply(reply_bodies.ModelList(object="list", data=[model()]))

    @router.get("/v1/models/{model_id:path}", responses={200: {"model": reply_bodies.Model}, **ERRORS})
    async def one_model(model_id: str) -> Response:
        """One of the models."""
        service.check_model(model_id)
        return reply(model())


def _add_generation(router: APIRouter, service: Service) -> None:
    @router.post("/v1/chat/completions", responses=generated(reply_bodies.ChatReply))
    async def chat(body: ChatRequest, request: Request) -> Response:
        """The assistant's next message in a conversation."""
        return await generate(service, request, body, "chatcmpl", chat_job)

    @router.post("/v1/completions", responses=generated(reply_bodies.CompletionReply))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """What follows one prompt or several; with `echo` and no new tokens, how likely they are."""
        return await generate(service, request, body, "cmpl", completion_job)

    @router.post("/v1/embeddings", responses={200: {"model": reply_bodies.EmbeddingReply}, **BODY_ERRORS})
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """The vectors of one text or several."""
        caller = caller_of(service, request)
        service.check_model(body.model)
        headers = ignored(body, strict=True)
        name = f"embd-{uuid.uuid4().hex}"
        requests = await service.worker_pools.run(
            len(await request.body()), embedding_requests, service.client, body, caller, name, service.pooling
        )
        return Embeddings(service, body, requests, name, caller, headers)


def generated(model: type[reply_bodies.Reply]) -> dict[int | str, dict[str, Any]]:
    """The replies of a generating route, for the document."""
    events = {"text/event-stream": {"schema": openapi_rules.EVENT}}
    return {200: {"model": model, "content": events, "description": "The reply, or its chunks."}, **BODY_ERRORS}


async def generate(
    service: Service,
    request: Request,
    body: GenerationBody,
    kind: str,
    make: Callable[..., ReplyBuilder],
    respond: Callable[..., Response] = Generation,
    *,
    held: int = 0,
) -> Response:
    """Check a body completely, and answer with what it becomes.

    Args:
        held: tokens of the prompt that the server has already.
    """
    caller = caller_of(service, request)
    service.check_model(body.model)
    headers = ignored(body, strict=service.config.strict)
    name = uuid.uuid4().hex if body.request_id is None else body.request_id
    head = ReplyHeader(f"{kind}-{name}", service.now(), service.model, service.engine.info.numerics_id)
    arguments = (service.client, service.context, body, caller, head, head.id)
    size = len(await request.body())
    if getattr(body, "chat_template", None) is not None:
        job = await service.worker_pools.run_template(make, *arguments)
    elif size + held > QUICK_BYTES:  # what takes a while is no reason to hold up the streams of others
        job = await service.worker_pools.run(size, make, *arguments)
    else:
        job = make(*arguments)
    return respond(service, job, stream=bool(body.stream), tenant=caller.tenant, headers=headers)


def caller_of(service: Service, request: Request) -> Caller:
    """Who asks, if it may now."""
    service.check_ready()
    tenant = request.state.tenant
    service.limits.begin(tenant)
    together = service.limits.together(tenant, service.client.max_requests)
    parent = request.headers.get("traceparent", "")
    trace_id = parent if _TRACEPARENT.fullmatch(parent) else request.state.request_id
    config = service.config
    return Caller(tenant, trace_id, config.request_seconds, together, config.max_logprobs)


def ignored(body: Body, *, strict: bool) -> dict[str, str]:
    """The header that names fields without an effect. Raises what `survey` does."""
    names = survey(body, strict=strict)
    shown = [quote(name[:128], safe="[]") for name in names[:MAX_NAMED]]
    return {"x-ferrum-ignored": ", ".join(shown)} if shown else {}


def _add_tokens(router: APIRouter, service: Service) -> None:
    async def run(work: Callable[..., reply_bodies.Reply], body: Any, request: Request, *arguments: Any) -> Response:
        service.check_model(body.model)
        headers = ignored(body, strict=service.config.strict)

        def make() -> Response:  # as JSON, too: a text of megabytes has millions of tokens
            return reply(work(service.client, *arguments, body))

        if getattr(body, "chat_template", None) is not None:
            made = await service.worker_pools.run_template(make)
        else:
            made = await service.worker_pools.run(len(await request.body()), make)
        made.headers.update(headers)
        return made

    @router.post("/tokenize", responses={200: {"model": reply_bodies.Tokens}, **BODY_ERRORS})
    async def to_tokens(body: TokenizeRequest, request: Request) -> Response:
        """The tokens of a text or of a conversation."""
        return await run(tokenize, body, request, service.context)

    @router.post("/detokenize", responses={200: {"model": reply_bodies.Text}, **BODY_ERRORS})
    async def to_text(body: DetokenizeRequest, request: Request) -> Response:
        """The text of tokens."""
        return await run(detokenize, body, request)

    @router.post("/v1/chat/completions/render", responses={200: {"model": reply_bodies.Rendered}, **BODY_ERRORS})
    async def to_prompt(body: RenderRequest, request: Request) -> Response:
        """The text and the tokens that a conversation becomes."""
        return await run(rendered, body, request)
