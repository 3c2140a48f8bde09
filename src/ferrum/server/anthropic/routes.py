"""The routes of Anthropic's Messages API, and its wire form: named events, errors with a type and the request's id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from ferrum.server.anthropic.ask import message_ask
from ferrum.server.anthropic.fields import CountRequest, MessagesRequest
from ferrum.server.anthropic.message_threads import PREFIX, HeldThread, completed, held_turn
from ferrum.server.anthropic.replies import MessageBuilder, MessageReply, TokenCount, replaced_header
from ferrum.server.chat.ask import asked, prompt_length
from ferrum.server.chat.generation import generate
from ferrum.server.chat.turn import ReplyHeader
from ferrum.server.common import field_rules
from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import STATUSES, ApiError
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.json_routes import ignored, reply
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.reply_store import ReplyStore, Turn
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service

TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Types of errors by status; other statuses use the type of their class (4xx, 5xx)."""

OVERLOADED: Final = 529
"""Status of a server that cannot serve now and says when to retry; clients of this API expect it instead of 503."""

TOO_LONG: Final = "Prompt is too long"
"""Clients that read these words shorten their conversation."""

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class ErrorDetails(Reply):
    """The code of an error about threads, which official clients read."""

    error_code: str


class ErrorBody(Reply):
    """Fields of an error."""

    type: str
    message: str
    details: ErrorDetails | None = None


class ErrorReply(Reply):
    """The reply of every failed request."""

    type: Literal["error"]
    error: ErrorBody
    request_id: str


def _error(error: ApiError) -> bytes:
    of_class = "invalid_request_error" if error.status_code < 500 else "api_error"
    kind = of_class if error.code == "engine_dead" else TYPES.get(error.status_code, of_class)
    message = f"{TOO_LONG}: {error.message}" if error.code == "context_length_exceeded" else error.message
    details = {"details": ErrorDetails(error_code=error.code)} if error.code.startswith("thread_") else {}
    body = ErrorBody(type=kind, message=message, **details)
    return ErrorReply(type="error", error=body, request_id=error.request_id).json_bytes()


def _status(error: ApiError) -> int:
    waits = error.status_code == 503 and "retry-after" in (error.headers or {})
    return OVERLOADED if waits else error.status_code


MESSAGES: Final = Dialect(
    paths=("/v1/messages", "/api/hello"),
    ids=("msg_",),
    error=_error,
    status=_status,
    keep_alive=PING,
    id_header="request-id",
    shared_paths=("/v1/models",),
    headers=("anthropic-version", "x-api-key"),
    client_header="anthropic-version",
)


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
        return await generate(service, request, body, PREFIX, make, extra_bytes=size)

    @router.post("/v1/messages/count_tokens", responses={200: {"model": TokenCount}, **ERRORS})
    async def count_tokens(body: CountRequest, request: Request) -> Response:
        """Return the number of tokens of a conversation's prompt."""
        held, size = _held(service, request, body)
        model = service.model(body.model)
        headers = ignored(service, body, model)

        def work() -> tuple[int, Sequence[str]]:
            ask, replaced = message_ask(model.client, *completed(body, held))
            return prompt_length(model.client, ask), replaced

        count, replaced = await service.worker_pools.run(
            len(await request.body()) + size, work, images=body.has_images()
        )
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


def message_builder(
    store: ReplyStore,
    held: Turn | None,
    model: ServedModel,
    body: MessagesRequest,
    caller: Caller,
    header: ReplyHeader,
) -> MessageBuilder:
    """Check a body and return the builder of its reply. Raises as `asked`.

    Args:
        store: gets the reply, if it is of a thread.
        held: the turn that the body continues.
    """
    ask, replaced = message_ask(model.client, *completed(body, held))
    thread = None if body.thread is None else HeldThread(store, caller.tenant, body, held)
    made = asked(model, ask, caller, header.id)
    return MessageBuilder(header, body, made, replaced, None if thread is None else thread.keep)
