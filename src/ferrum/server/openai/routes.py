"""The routes of OpenAI's and vLLM's API: each checks a request, starts its work and returns the response."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.server.anthropic import routes as messages
from ferrum.server.anthropic.model_list import ModelInfo, ModelPage, model_info, model_page, wants_anthropic
from ferrum.server.chat.generation import generate
from ferrum.server.common.dialect import UNNAMED_EVENT, Dialect
from ferrum.server.common.embeddings import Embeddings
from ferrum.server.common.error_replies import STATUSES
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.json_routes import has_template, ignored, reply
from ferrum.server.common.openai_errors import BODY_ERRORS, ErrorReply, generated, openai_error
from ferrum.server.common.served_model import ServedModel, listed_models
from ferrum.server.common.service import Service
from ferrum.server.openai import replies
from ferrum.server.openai.builders import chat_builder, completion_builder
from ferrum.server.openai.codex_models import ModelList, codex_model
from ferrum.server.openai.embeddings import check_embedding, embedding_reply
from ferrum.server.openai.fields import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    RenderRequest,
    TokenizeRequest,
)
from ferrum.server.openai.tokenize import detokenize, rendered, tokenize

_ROUTES: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize")
"""Routes that answer in this form whatever the client's headers; those of /v1/models follow them."""

_WRONG_BASE: Final = "/api/v1"
"""The base URL of other servers of this API, which Ollama's API does not have."""

OPENAI: Final = Dialect(
    paths=("", *_ROUTES, _WRONG_BASE),
    ids=("chatcmpl-", "cmpl-", "embd-"),
    error=openai_error,
    event=UNNAMED_EVENT,
    end=b"data: [DONE]\n\n",
)
"""The wire form of OpenAI's API, which vLLM and most clients share."""


def add_openai_routes(router: APIRouter, service: Service) -> None:
    """Add the routes; requests are matched in this order."""
    _add_generation(router, service)
    _add_tokens(router, service)
    _add_models(router, service)


def _add_models(router: APIRouter, service: Service) -> None:
    def described(model: ServedModel, name: str) -> replies.Model:
        return replies.Model(
            id=name,
            object="model",
            created=service.started,
            owned_by="ferrum",
            root=model.root,
            parent=model.parent,
            max_model_len=model.context,
        )

    page = {"model": ModelList | ModelPage}
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorReply | messages.ErrorReply, "description": STATUSES[status]}
        for status in (401, 404, 503)
    }
    errors[messages.OVERLOADED] = {"model": messages.ErrorReply, "description": STATUSES[503]}

    @router.get("/v1/models", responses={200: page, **{each: errors[each] for each in errors if each != 404}})
    async def models(request: Request) -> Response:
        """List the names of the models that are served, in the shape of the API whose headers the client sends."""
        service.model()
        every = [(each, name) for name, each in listed_models(service.models)]
        if wants_anthropic(request):
            return reply(model_page(model_info(service, each, name) for each, name in every))
        data = [described(each, name) for each, name in every]
        codex = [codex_model(each, name, place) for place, (each, name) in enumerate(every)]
        return reply(ModelList(object="list", data=data, models=codex))

    @router.get("/v1/models/{model_id:path}", responses={200: {"model": replies.Model | ModelInfo}, **errors})
    async def one_model(model_id: str, request: Request) -> Response:
        """Return a model by its name."""
        model = service.model(model_id)
        name = model_id if model_id in model.names else model.name
        return reply(model_info(service, model, name) if wants_anthropic(request) else described(model, name))


def _add_generation(router: APIRouter, service: Service) -> None:
    @router.post("/v1/chat/completions", responses=generated(replies.ChatReply))
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Generate the assistant's next message in a conversation."""
        return await generate(service, request, body, "chatcmpl-", chat_builder)

    @router.post("/v1/completions", responses=generated(replies.CompletionReply))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Complete one or several prompts; with `echo` and `max_tokens` 0, score them."""
        return await generate(service, request, body, "cmpl-", completion_builder)

    @router.post("/v1/embeddings", responses={200: {"model": replies.EmbeddingReply}, **BODY_ERRORS})
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """Return the vectors of one or several texts."""
        model, caller = service.begin(request, body.model)
        headers = ignored(service, body)
        name = f"embd-{uuid.uuid4().hex}"
        size = len(await request.body())
        work = partial(check_embedding, model, body, caller, name)
        requests = await service.worker_pools.run(size, work)
        write = partial(embedding_reply, model, body, requests, name)
        return Embeddings(service, model, requests, write, name, caller, headers, dimensions=body.dimensions)


def _add_tokens(router: APIRouter, service: Service) -> None:
    async def run(work: Callable[[ServedModel, Any], Reply], body: Any, request: Request) -> Response:
        model = service.model(body.model)
        headers = ignored(service, body, model)

        def make() -> Response:  # the JSON too: a text of megabytes has millions of tokens
            return reply(work(model, body))

        made = await service.worker_pools.run(len(await request.body()), make, template=has_template(body))
        made.headers.update(headers)
        return made

    @router.post("/tokenize", responses={200: {"model": replies.Tokens}, **BODY_ERRORS})
    async def to_tokens(body: TokenizeRequest, request: Request) -> Response:
        """Return the tokens of a text or a conversation."""
        return await run(tokenize, body, request)

    @router.post("/detokenize", responses={200: {"model": replies.Text}, **BODY_ERRORS})
    async def to_text(body: DetokenizeRequest, request: Request) -> Response:
        """Return the text of tokens."""
        return await run(detokenize, body, request)

    @router.post("/v1/chat/completions/render", responses={200: {"model": replies.Rendered}, **BODY_ERRORS})
    async def to_prompt(body: RenderRequest, request: Request) -> Response:
        """Return the text and the tokens of a rendered conversation."""
        return await run(rendered, body, request)
