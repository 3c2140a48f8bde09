"""The routes of OpenAI's and vLLM's API: each checks a request, starts its work and returns the response."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.server.chat.generation import generate
from ferrum.server.common.dialect import UNNAMED_EVENT, Dialect
from ferrum.server.common.openai_errors import generated, openai_error
from ferrum.server.common.service import Service
from ferrum.server.openai import replies
from ferrum.server.openai.builders import chat_builder, completion_builder
from ferrum.server.openai.fields import (
    ChatRequest,
    CompletionRequest,
)

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
    """Add the routes."""

    @router.post("/v1/chat/completions", responses=generated(replies.ChatReply))
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Generate the assistant's next message in a conversation."""
        return await generate(service, request, body, "chatcmpl-", chat_builder)

    @router.post("/v1/completions", responses=generated(replies.CompletionReply))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Complete one or several prompts; with `echo` and `max_tokens` 0, score them."""
        return await generate(service, request, body, "cmpl-", completion_builder)
