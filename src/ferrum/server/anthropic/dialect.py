"""The wire form of Anthropic's API: named events, errors with a type and the request's id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from ferrum.server.common.dialect import Dialect
from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.json_bodies import Reply

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
