"""The routes of Ollama's API, and its wire form: each checks a request, starts its work and returns the response."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.core.types import Request as EngineRequest
from ferrum.server.chat.ask import asked
from ferrum.server.chat.generation import generate
from ferrum.server.chat.turn import ReplyHeader
from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import STATUSES, ApiError, invalid
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.json_routes import ignored, reply
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service
from ferrum.server.ollama import replies
from ferrum.server.ollama.ask import chat_ask, check_context, check_fields, generate_ask
from ferrum.server.ollama.fields import (
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    OllamaBody,
    OllamaChatRequest,
    ShowRequest,
)
from ferrum.server.ollama.model_lists import known_name, listed, refused_change, shown
from ferrum.server.ollama.replies import OllamaBuilder
from ferrum.server.tasks.embeddings import MAX_INPUTS, Embeddings, Vectors, embedding_requests

CHANGES: Final = ("pull", "push", "create", "copy", "delete", "blobs")
"""Routes below /api that change the models of an Ollama server."""


def _error(error: ApiError) -> bytes:
    return replies.ErrorReply(error=error.message).json_bytes()


OLLAMA: Final = Dialect(
    paths=("/api",),
    ids=("ollama-",),
    error=_error,
    event=b"%(json)b\n",
    keep_alive=b"",
    stream_type="application/x-ndjson",
    typed=False,
)
"""Streams are lines of JSON, and errors are one text."""

API_VERSION: Final = "0.14.0"
"""The first version of Ollama with the Responses and Messages APIs; clients that need them ask for it."""

ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": replies.ErrorReply, "description": text} for status, text in STATUSES.items()
}
_GET_ERRORS: Final[dict[int | str, dict[str, Any]]] = {status: ERRORS[status] for status in (401, 503)}


def add_ollama_routes(router: APIRouter, service: Service) -> None:
    """Add the routes."""
    _add_models(router, service)
    _add_generation(router, service)
    _add_embeddings(router, service)
    for name in CHANGES:
        path = f"/api/{name}" if name != "blobs" else "/api/blobs/{digest}"
        method = "DELETE" if name == "delete" else "POST"
        router.add_api_route(path, _refuse, methods=[method], include_in_schema=False)


async def _refuse(request: Request) -> Response:
    raise refused_change(request.url.path)


def _add_models(router: APIRouter, service: Service) -> None:
    @router.get("/api/version", responses={200: {"model": replies.Version}, 401: ERRORS[401]})
    async def version() -> Response:
        """Return the version of Ollama's API."""
        return reply(replies.Version(version=API_VERSION))

    @router.get("/api/tags", responses={200: {"model": replies.ModelList}, **_GET_ERRORS})
    async def tags() -> Response:
        """List the names of the models that are served."""
        return reply(listed(service, running=False))

    @router.get("/api/ps", responses={200: {"model": replies.ModelList}, **_GET_ERRORS})
    async def loaded() -> Response:
        """List the models in memory: those that are served."""
        return reply(listed(service, running=True))

    @router.post("/api/show", responses={200: {"model": replies.Shown}, **ERRORS})
    async def show(body: ShowRequest, request: Request) -> Response:
        """Return what is known of a model."""
        size = len(await request.body())
        headers = ignored(service, body)
        # The format of the model's calls is found at the first request, which may take a second.
        made = await service.worker_pools.run(size, lambda: reply(shown(service, body.model or body.name)))
        made.headers.update(headers)
        return made


def _generated(model: type[Reply]) -> dict[int | str, dict[str, Any]]:
    lines = {"application/x-ndjson": {"schema": {"type": "object", "description": "A line of the stream."}}}
    return {200: {"model": model, "content": lines, "description": "The reply, or its lines."}, **ERRORS}


def _add_generation(router: APIRouter, service: Service) -> None:
    @router.post("/api/chat", responses=_generated(replies.ChatReply))
    async def chat(body: OllamaChatRequest, request: Request) -> Response:
        """Generate the assistant's next message in a conversation."""
        body.model = known_name(service, body.model)
        if not body.messages:
            message = replies.Message(role="assistant", content="")
            return _looked_up(service, body, request, replies.ChatReply, {"message": message})
        return await generate(service, request, body, "ollama-", chat_builder)

    @router.post("/api/generate", responses=_generated(replies.GenerateReply))
    async def complete(body: GenerateRequest, request: Request) -> Response:
        """Complete a prompt, or fill the gap before its suffix."""
        body.model = known_name(service, body.model)
        if not body.prompt and not body.suffix:
            return _looked_up(service, body, request, replies.GenerateReply, {"response": ""})
        return await generate(service, request, body, "ollama-", generate_builder)


def chat_builder(model: ServedModel, body: OllamaChatRequest, caller: Caller, header: ReplyHeader) -> OllamaBuilder:
    """Check a body and return the builder of its reply. Raises as `asked`."""
    return OllamaBuilder(header, asked(model, chat_ask(model, body), caller, header.id), chat=True)


def generate_builder(model: ServedModel, body: GenerateRequest, caller: Caller, header: ReplyHeader) -> OllamaBuilder:
    """Check a body and return the builder of its reply. Raises as `asked`."""
    return OllamaBuilder(header, asked(model, generate_ask(model, body), caller, header.id), chat=False)


def _looked_up(
    service: Service, body: OllamaBody, request: Request, kind: type[replies.Generated], fields: dict[str, Any]
) -> Response:
    """Return the reply to a body without a prompt, with which clients of Ollama load a model. It is loaded."""
    model, _ = service.begin(request, body.model)
    check_fields(model, body)
    headers = ignored(service, body, model)
    about: dict[str, Any] = {
        "model": model.name,
        "created_at": replies.written_time(time.time()),
        "done": True,
        "done_reason": "load",
    }
    made = reply(kind(**about, **fields))
    made.headers.update(headers)
    return made


def _add_embeddings(router: APIRouter, service: Service) -> None:
    @router.post("/api/embed", responses={200: {"model": replies.EmbedReply}, **ERRORS})
    async def embed(body: EmbedRequest, request: Request) -> Response:
        """Return the vectors of one or several texts."""
        texts = [body.input] if isinstance(body.input, str) else body.input
        if not 1 <= len(texts) <= MAX_INPUTS:
            raise invalid("input", f"must have 1 to {MAX_INPUTS} texts, not {len(texts)}")

        return await _embeddings(service, request, body, texts)

    @router.post("/api/embeddings", responses={200: {"model": replies.EmbeddingReply}, **ERRORS})
    async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
        """Return the vector of a text; older form of /api/embed."""
        return await _embeddings(service, request, body, [body.prompt])


async def _embeddings(
    service: Service, request: Request, body: EmbedRequest | EmbeddingsRequest, texts: Sequence[str]
) -> Response:
    """Return the response to texts, which are cut to the context at their end unless `truncate` is false."""
    model, caller = service.begin(request, known_name(service, body.model))
    check_context(model, body.options)
    headers = ignored(service, body)
    name = f"ollama-{uuid.uuid4().hex}"
    newer = isinstance(body, EmbedRequest)
    field, cut = ("input", body.truncate is not False) if isinstance(body, EmbedRequest) else ("prompt", True)
    keep = model.context if cut else None
    work = partial(embedding_requests, model, texts, caller, name, field=field, keep=keep, start=True)
    requests = await service.worker_pools.run(len(await request.body()), work)
    write = partial(_vectors, model, requests) if newer else _vector
    dimensions = body.dimensions or None if isinstance(body, EmbedRequest) else None
    return Embeddings(service, model, requests, write, name, caller, headers, dimensions=dimensions)


def _vectors(model: ServedModel, requests: Sequence[EngineRequest], vectors: Vectors) -> Reply:
    return replies.EmbedReply(
        model=model.name,
        embeddings=[list(each) for each in vectors],
        total_duration=round((time.monotonic() - requests[0].arrival) * 1e9),
        load_duration=0,
        prompt_eval_count=sum(len(each.prompt) for each in requests),
    )


def _vector(vectors: Vectors) -> Reply:
    return replies.EmbeddingReply(embedding=list(vectors[0]))
