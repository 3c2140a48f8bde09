"""The routes of OpenAI's and vLLM's API: each checks a request, starts its work and returns the response."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.server.anthropic import dialect as messages
from ferrum.server.anthropic.model_list import ModelInfo, ModelPage, model_info, model_page, wants_anthropic
from ferrum.server.common import field_rules
from ferrum.server.common.embeddings import Embeddings
from ferrum.server.common.error_replies import STATUSES
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.json_routes import generate, has_template, ignored, reply
from ferrum.server.common.served_model import ServedModel, listed_models
from ferrum.server.common.service import Service
from ferrum.server.openai import replies
from ferrum.server.openai.bodies import CompletionRequest, DetokenizeRequest, EmbeddingRequest
from ferrum.server.openai.chat_completions import add_chat
from ferrum.server.openai.chat_replies import ChatReply
from ferrum.server.openai.codex_models import ModelList, codex_model
from ferrum.server.openai.completions import completion_builder
from ferrum.server.openai.conversation import RenderRequest, TokenizeRequest
from ferrum.server.openai.embeddings import check_embedding, embedding_reply
from ferrum.server.openai.tokenize import detokenize, rendered, tokenize


def error_reply(text: str) -> dict[str, Any]:
    """Return the description of an error for the OpenAPI document."""
    return {"model": replies.ErrorReply, "description": text}


BODY_ERRORS: Final[dict[int | str, dict[str, Any]]] = {each: error_reply(text) for each, text in STATUSES.items()}
ERRORS: Final[dict[int | str, dict[str, Any]]] = {each: BODY_ERRORS[each] for each in (400, 401, 404, 503)}


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
        status: {"model": replies.ErrorReply | messages.ErrorReply, "description": STATUSES[status]}
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
    add_chat(router, service, generated(ChatReply))

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


def generated(model: type[Reply]) -> dict[int | str, dict[str, Any]]:
    """Return the replies of a generating route for the OpenAPI document."""
    events = {"text/event-stream": {"schema": field_rules.EVENT}}
    return {200: {"model": model, "content": events, "description": "The reply, or its chunks."}, **BODY_ERRORS}


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
