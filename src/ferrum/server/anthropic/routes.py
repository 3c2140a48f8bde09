"""The routes of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.server.anthropic.bodies import CountRequest, MessagesRequest
from ferrum.server.anthropic.checks import check_prompt, format_params
from ferrum.server.anthropic.dialect import OVERLOADED, ErrorReply
from ferrum.server.anthropic.events import MessageReply, TokenCount
from ferrum.server.anthropic.message_builder import MessageBuilder, message_builder
from ferrum.server.anthropic.message_threads import PREFIX, completed, held_turn
from ferrum.server.common import field_rules
from ferrum.server.common.error_replies import STATUSES
from ferrum.server.common.generation import Generation
from ferrum.server.common.json_routes import MAX_NAMED, generate, ignored, reply
from ferrum.server.common.reply_store import Turn
from ferrum.server.common.service import Service

REPLACED: Final = "x-ferrum-replaced"
"""Header that names what the prompt has in another form."""

_STATUSES: Final = {
    **STATUSES,
    503: "The engine has ended.",
    OVERLOADED: "The server is loading, draining or out of room; see Retry-After.",
}
ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorReply, "description": text} for status, text in _STATUSES.items()
}


def add_anthropic_routes(router: APIRouter, service: Service) -> None:
    """Add the routes."""
    events = {"text/event-stream": {"schema": {**field_rules.EVENT, "description": "An event of the stream."}}}
    message = {"model": MessageReply, "content": events, "description": "The message, or its events."}

    @router.post("/v1/messages", responses={200: message, **ERRORS})
    async def messages(body: MessagesRequest, request: Request) -> Response:
        """Generate the assistant's next message in a conversation."""
        held, size = _held(service, request, body)
        make = partial(message_builder, service.replies, held)
        return await generate(service, request, body, PREFIX, make, _respond, extra_bytes=size)

    @router.post("/v1/messages/count_tokens", responses={200: {"model": TokenCount}, **ERRORS})
    async def count_tokens(body: CountRequest, request: Request) -> Response:
        """Return the number of tokens of a conversation's prompt."""
        held, size = _held(service, request, body)
        model = service.model(body.model)
        headers = ignored(service, body, model)

        def work() -> tuple[int, Sequence[str]]:
            whole, earlier = completed(body, held)
            params = model.client.default_params.but(**format_params(whole))
            checked = check_prompt(model.client, whole, params, earlier)
            tokenizer = model.client.tokenizer
            assert tokenizer is not None, "conversations without one are refused"
            return len(tokenizer.encode(checked.prompt.text, add_special_tokens=False)), checked.replaced

        count, replaced = await service.worker_pools.run(len(await request.body()) + size, work)
        made = reply(TokenCount(input_tokens=count))
        made.headers.update({**headers, **replaced_header(replaced)})
        return made

    @router.head("/api/hello", include_in_schema=False)
    async def hello() -> Response:
        """Answer clients that ask whether the server can be reached."""
        return Response()


def _held(service: Service, request: Request, body: CountRequest) -> tuple[Turn | None, int]:
    """Return the turn that a body continues, with the bytes of all turns. Raises ApiError, 404, if it is not stored."""
    service.check_ready()
    held = held_turn(service.replies, request.state.tenant, body)
    return held, 0 if held is None else sum(each.size for each in held.back())


def replaced_header(paths: Sequence[str]) -> dict[str, str]:
    """Return the header that names what was replaced; empty if nothing was."""
    shown = [quote(path, safe="[]") for path in paths[:MAX_NAMED]]
    return {REPLACED: ", ".join(shown)} if shown else {}


def _respond(
    service: Service, model: Any, builder: MessageBuilder, *, headers: Mapping[str, str], **about: Any
) -> Response:
    return Generation(service, model, builder, headers={**headers, **replaced_header(builder.replaced)}, **about)
