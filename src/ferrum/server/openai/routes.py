"""The routes: each checks a request, starts its work and returns the response.

Bodies are checked in `openai.checks`; sessions, records and plans have routes of their own modules.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from email.message import Message
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic_core import from_json
from starlette.responses import PlainTextResponse, Response

from ferrum.core.version import installed_version
from ferrum.engine.model_client import ModelClient
from ferrum.server.common import openapi_rules
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.generation import Generation
from ferrum.server.common.public_names import without_directories
from ferrum.server.common.service import Caller, Service
from ferrum.server.openai import replies
from ferrum.server.openai.bodies import (
    Body,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    GenerationBody,
    RenderRequest,
    TokenizeRequest,
)
from ferrum.server.openai.chat_completions import chat_builder
from ferrum.server.openai.checks import check_embedding
from ferrum.server.openai.completions import completion_builder
from ferrum.server.openai.embeddings import Embeddings
from ferrum.server.openai.reasoning import unread_fields
from ferrum.server.openai.reply_builder import ReplyBuilder, ReplyHeader
from ferrum.server.openai.tokenize import detokenize, rendered, tokenize

MAX_LOOP_BYTES: Final = 4096
"""Bodies up to this size are checked on the event loop; handing them to a thread would take longer."""

MAX_NAMED: Final = 32
"""Ignored fields that the header names."""


class JsonRequest(Request):
    """A request whose body must be strict JSON.

    Refused are NaN, lone surrogates, numbers of thousands of digits and hundreds of levels of nesting.
    """

    async def body(self) -> bytes:
        """Return the body. Raises ApiError, 415, if its content type is not JSON or it is compressed."""
        header = Message()
        header["content-type"] = self.headers.get("content-type", "")
        if header.get_content_type() != "application/json":
            raise ApiError(415, "the content type must be application/json", code="unsupported_media_type")
        encoding = self.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            reason = f"the content encoding {encoding!r} is not supported; send the body uncompressed"
            raise ApiError(415, reason, code="unsupported_media_type", headers={"accept-encoding": "identity"})
        return await super().body()

    async def json(self) -> Any:
        """Return the body's value. Raises ApiError if it is not JSON."""
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None


class JsonRoute(APIRoute):
    """A route that reads its body as a `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive) if self.body_field else request)

        return strict


def reply(body: replies.Reply) -> Response:
    """Return a whole reply as a response."""
    return Response(body.json_bytes(), media_type="application/json")


def error_reply(text: str) -> dict[str, Any]:
    """Return the description of an error for the OpenAPI document."""
    return {"model": replies.ErrorReply, "description": text}


ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: error_reply("The request cannot be served; `param` names the field."),
    401: error_reply("No valid API key."),
    404: error_reply("Not found."),
    503: error_reply("The server is loading, draining or has failed."),
}
BODY_ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    **ERRORS,
    408: error_reply("The body or the request took too long."),
    413: error_reply("The body is too large."),
    415: error_reply("The body is not JSON, or is compressed."),
    429: error_reply("Too many requests are in progress; see Retry-After."),
    499: error_reply("The request was cancelled."),
    500: error_reply("An internal error."),
}


def make_router(service: Service) -> APIRouter:
    """Return all routes of a server; requests are matched in this order."""
    router = APIRouter(route_class=JsonRoute)
    _add_generation(router, service)
    _add_tokens(router, service)
    _add_probes(router, service)
    _add_models(router, service)
    return router


def add_heads(router: APIRouter) -> None:
    """Serve HEAD wherever GET is served, as HTTP demands (RFC 9110, 9.1); it is not in the OpenAPI document."""
    for route in [each for each in router.routes if isinstance(each, APIRoute) and "GET" in (each.methods or ())]:
        router.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)


def _add_probes(router: APIRouter, service: Service) -> None:
    probe: dict[int | str, dict[str, Any]] = {200: {"model": replies.Health}, 503: ERRORS[503]}

    async def health() -> Response:
        """Report whether requests are served now."""
        service.check_ready()
        return reply(replies.Health(status="ok"))

    for path in ("/health", "/ping", "/ready"):
        router.get(path, responses=probe)(health)

    @router.get("/version", responses={200: {"model": replies.Version}})
    async def version() -> Response:
        """Return the version of ferrum."""
        return reply(replies.Version(version=installed_version()))

    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

    @router.get("/metrics", responses=text, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Return Prometheus metrics; docs/metrics.md defines each."""
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/config", responses={200: {"model": replies.Config}, 401: ERRORS[401], 503: ERRORS[503]})
    async def config() -> Response:
        """Return the options in effect and the properties of the model; of paths their last parts."""
        client, info = service.client, service.engine.info
        return reply(
            replies.Config(
                server=without_directories(service.config.to_dict()),
                engine=None if client.config is None else without_directories(client.config.to_dict()),
                model={
                    "name": service.model,
                    "vocab_size": info.vocab_size,
                    "max_model_len": service.context,
                    "kv_capacity": info.kv_capacity,
                    "numerics_id": info.numerics_id,
                    "kernels": info.kernels,
                    "chat_template": client.chat_template is not None,
                },
                sampling=dict(client.recommended),
            )
        )


def _add_models(router: APIRouter, service: Service) -> None:
    def model(name: str) -> replies.Model:
        return replies.Model(
            id=name,
            object="model",
            created=service.started,
            owned_by="ferrum",
            root=service.root,
            parent=None,
            max_model_len=service.context,
        )

    listed: dict[int | str, dict[str, Any]] = {
        200: {"model": replies.ModelList},
        401: ERRORS[401],
        503: ERRORS[503],
    }

    @router.get("/v1/models", responses=listed)
    async def models() -> Response:
        """List the names of the model that is served."""
        return reply(replies.ModelList(object="list", data=[model(name) for name in service.models]))

    @router.get("/v1/models/{model_id:path}", responses={200: {"model": replies.Model}, **ERRORS})
    async def one_model(model_id: str) -> Response:
        """Return the model by its name."""
        service.check_model(model_id)
        return reply(model(model_id if model_id in service.models else service.model))


def _add_generation(router: APIRouter, service: Service) -> None:
    @router.post("/v1/chat/completions", responses=generated(replies.ChatReply))
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Generate the assistant's next message in a conversation."""
        return await generate(service, request, body, "chatcmpl", chat_builder)

    @router.post("/v1/completions", responses=generated(replies.CompletionReply))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Complete one or several prompts; with `echo` and `max_tokens` 0, score them."""
        return await generate(service, request, body, "cmpl", completion_builder)

    @router.post("/v1/embeddings", responses={200: {"model": replies.EmbeddingReply}, **BODY_ERRORS})
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """Return the vectors of one or several texts."""
        caller = caller_of(service, request)
        service.check_model(body.model)
        headers = ignored(body, strict=service.config.strict)
        name = f"embd-{uuid.uuid4().hex}"
        size = len(await request.body())
        requests = await service.worker_pools.run(
            size, check_embedding, service.client, body, caller, name, service.pooling
        )
        return Embeddings(service, body, requests, name, caller, headers)


def generated(model: type[replies.Reply]) -> dict[int | str, dict[str, Any]]:
    """Return the replies of a generating route for the OpenAPI document."""
    events = {"text/event-stream": {"schema": openapi_rules.EVENT}}
    return {200: {"model": model, "content": events, "description": "The reply, or its chunks."}, **BODY_ERRORS}


async def generate(
    service: Service,
    request: Request,
    body: GenerationBody,
    kind: str,
    make: Callable[[ModelClient, Any, Caller, ReplyHeader], ReplyBuilder],
    respond: Callable[..., Response] = Generation,
    *,
    extra_tokens: int = 0,
) -> Response:
    """Check a body and return the response to it.

    Args:
        kind: prefix of the reply's id.
        make: checks the body and returns the builder of its reply.
        respond: the response's class.
        extra_tokens: tokens of the prompt that are not in the body.
    """
    caller = caller_of(service, request)
    service.check_model(body.model)
    headers = ignored(body, strict=service.config.strict, also=unread_fields(service.client, body))
    name = uuid.uuid4().hex if body.request_id is None else body.request_id
    header = ReplyHeader(f"{kind}-{name}", int(time.time()), service.model, service.engine.info.numerics_id)
    arguments = (service.client, body, caller, header)
    size = len(await request.body())
    if getattr(body, "chat_template", None) is not None:
        builder = await service.worker_pools.run_template(make, *arguments)
    elif size + extra_tokens > MAX_LOOP_BYTES:  # a long check would delay the streams of others
        builder = await service.worker_pools.run(size, make, *arguments)
    else:
        builder = make(*arguments)
    return respond(service, builder, stream=bool(body.stream), tenant=caller.tenant, headers=headers)


def caller_of(service: Service, request: Request) -> Caller:
    """Count a request and return its sender's limits. Raises as `Service.caller`."""
    state = request.state
    return service.caller(state.tenant, request.headers.get("traceparent", ""), state.request_id)


def ignored(body: Body, *, strict: bool, also: Sequence[str] = ()) -> dict[str, str]:
    """Return the header that names fields without effect, and `also`. Raises as `Body.ignored_fields`."""
    names = [*also, *body.ignored_fields(strict=strict)]
    # A header must not end with a space, so an empty name is written as two quotation marks.
    shown = [quote(name[:128], safe="[]") or '""' for name in names[:MAX_NAMED]]
    return {"x-ferrum-ignored": ", ".join(shown)} if shown else {}


def _add_tokens(router: APIRouter, service: Service) -> None:
    async def run(work: Callable[..., replies.Reply], body: Any, request: Request, *arguments: Any) -> Response:
        service.check_model(body.model)
        headers = ignored(body, strict=service.config.strict, also=unread_fields(service.client, body))

        def make() -> Response:  # the JSON too: a text of megabytes has millions of tokens
            return reply(work(service.client, *arguments, body))

        if getattr(body, "chat_template", None) is not None:
            made = await service.worker_pools.run_template(make)
        else:
            made = await service.worker_pools.run(len(await request.body()), make)
        made.headers.update(headers)
        return made

    @router.post("/tokenize", responses={200: {"model": replies.Tokens}, **BODY_ERRORS})
    async def to_tokens(body: TokenizeRequest, request: Request) -> Response:
        """Return the tokens of a text or a conversation."""
        return await run(tokenize, body, request, service.context)

    @router.post("/detokenize", responses={200: {"model": replies.Text}, **BODY_ERRORS})
    async def to_text(body: DetokenizeRequest, request: Request) -> Response:
        """Return the text of tokens."""
        return await run(detokenize, body, request)

    @router.post("/v1/chat/completions/render", responses={200: {"model": replies.Rendered}, **BODY_ERRORS})
    async def to_prompt(body: RenderRequest, request: Request) -> Response:
        """Return the text and the tokens of a rendered conversation."""
        return await run(rendered, body, request)
