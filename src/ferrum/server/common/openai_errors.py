"""OpenAI's form of errors, which other routes share, and replies as the OpenAPI document describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ferrum.server.common import field_rules
from ferrum.server.common.error_replies import STATUSES, ApiError
from ferrum.server.common.json_bodies import Reply

TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_exceeded",
    503: "unavailable_error",
}
"""Types of errors by status; other statuses use the type of their class (4xx, 5xx)."""


class ErrorBody(Reply):
    """Fields of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(Reply):
    """The reply of every failed request."""

    error: ErrorBody


def openai_error(error: ApiError) -> bytes:
    """Return the JSON of an error."""
    of_class = "invalid_request_error" if error.status_code < 500 else "internal_error"
    kind = TYPES.get(error.status_code, of_class)
    return ErrorReply(
        error=ErrorBody(message=error.message, type=kind, param=error.param, code=error.code)
    ).json_bytes()


def error_reply(text: str) -> dict[str, Any]:
    """Return the description of an error for the OpenAPI document."""
    return {"model": ErrorReply, "description": text}


BODY_ERRORS: Final[dict[int | str, dict[str, Any]]] = {each: error_reply(text) for each, text in STATUSES.items()}
ERRORS: Final[dict[int | str, dict[str, Any]]] = {each: BODY_ERRORS[each] for each in (400, 401, 404, 503)}


def generated(model: type[Reply]) -> dict[int | str, dict[str, Any]]:
    """Return the replies of a generating route for the OpenAPI document."""
    events = {"text/event-stream": {"schema": field_rules.EVENT}}
    return {200: {"model": model, "content": events, "description": "The reply, or its chunks."}, **BODY_ERRORS}
