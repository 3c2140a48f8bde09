"""Errors as HTTP replies: a status, a code, the field at fault, and no traceback.

Their JSON is in each `Dialect`; the exception types of the engine are in `core.errors`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from ferrum.core.errors import (
    CapacityError,
    EngineDead,
    FerrumError,
    NothingAllowed,
    QueueFull,
    RequestError,
    Unsupported,
)
from ferrum.core.values import shown

_REASONS: Final = {
    "greater_than_equal": "must be at least {ge}, not {input}",
    "less_than_equal": "must be at most {le}, not {input}",
    "union_tag_invalid": "must have a {discriminator} of {expected_tags}, not '{tag}'",
}
"""Reasons of faults in values, as those of other checks."""

STATUSES: Final[Mapping[int, str]] = {
    400: "The request cannot be served; the error names the field.",
    401: "No valid API key.",
    404: "Not found.",
    408: "The body or the request took too long.",
    413: "The body is too large.",
    415: "The body is not JSON, or is compressed.",
    429: "Too many requests are in progress; see Retry-After.",
    499: "The request was cancelled.",
    500: "An internal error.",
    503: "The server is loading, draining or has failed.",
}
"""What errors mean, for the OpenAPI document."""

_LOG: Final = logging.getLogger(__name__)


class ApiError(HTTPException):
    """An error with everything that its reply needs. The framework passes HTTPExceptions through everywhere.

    Args:
        status: of HTTP.
        message: for people.
        code: a stable name for programs.
        param: the field at fault.

    Attributes:
        request_id: of the request, once it is known which one failed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.message = message
        self.code = code
        self.param = param
        self.request_id = ""


class CancelledError(FerrumError):
    """The request was ended by a DELETE, by its client leaving, or by a shutdown."""


class DeadlineError(FerrumError):
    """The request took longer than the server allows."""


def unsupported(param: str, reason: str) -> ApiError:
    """Return the error for a known field or value that is not supported."""
    return ApiError(400, f"{param}: {reason}", code="unsupported_parameter", param=param)


def invalid(param: str, reason: str) -> RequestError:
    """Return the error for a field with an invalid value."""
    return RequestError(reason, param=param)


@contextmanager
def named_in_body(sources: Sequence[Sequence[tuple[str, Any]]], conversation: str = "messages") -> Iterator[None]:
    """Name the fields of the client's body in errors about messages of the engine.

    Args:
        sources: for each message the paths, with the values, that it was put together from.
        conversation: the field with the conversation.
    """
    try:
        yield
    except RequestError as error:
        found = re.match(r"messages(?:\[(\d+)\])?(?!\w)", error.param or "")
        if found is None:
            raise
        own = sources[int(found[1])] if found[1] is not None and int(found[1]) < len(sources) else ()
        path = own[-1][0] if own else conversation
        if path == found[0]:
            raise
        raise error.about(path) from None


def as_api_error(error: Exception, request_id: str = "", retry_after: int = 1) -> ApiError:
    """Return the reply to any error. Errors without a reply are logged with the request's id and become a 500."""
    wait = {"retry-after": str(retry_after)}
    match error:
        case ApiError():
            return error
        case RequestError():
            return ApiError(error.status, str(error), code=error.code, param=error.param)
        case Unsupported():
            return ApiError(400, str(error), code="unsupported_parameter", param=error.feature)
        case NothingAllowed():
            return ApiError(400, str(error), code="no_token_allowed")
        case QueueFull():
            return ApiError(429, str(error), code="queue_full", headers=wait)
        case CapacityError():
            return ApiError(503, str(error), code="no_capacity", headers=wait)
        case EngineDead():
            return ApiError(503, "the engine has ended", code="engine_dead")
        case CancelledError():
            return ApiError(499, str(error), code="request_cancelled")
        case DeadlineError():
            # A retry would take as long; the official clients read this header.
            return ApiError(408, str(error), code="deadline_exceeded", headers={"x-should-retry": "false"})
    _LOG.error("request %s failed", request_id, exc_info=error)
    return ApiError(500, f"internal error; request id {request_id}", code="internal_error")


def from_framework(error: StarletteHTTPException) -> ApiError:
    """Return the reply to an error of the framework: no such route, no such method."""
    if isinstance(error, ApiError):
        return error
    phrase = HTTPStatus(error.status_code).phrase
    message = phrase if error.detail == phrase else f"{phrase}: {error.detail}"
    return ApiError(error.status_code, message, code=phrase.lower().replace(" ", "_"), headers=error.headers)


def from_validation(error: RequestValidationError) -> ApiError:
    """Return the reply to a body whose fields have wrong types: the first faulty field."""
    faults = error.errors()
    first = faults[0]
    if first["loc"][0] != "body":
        return ApiError(400, first["msg"], code="invalid_value", param=str(first["loc"][-1]))
    if not isinstance(error.body, dict):
        return ApiError(400, "the body must be a JSON object", code="invalid_value")
    paths = [(path_in(error.body, each["loc"][1:], missing=each["type"] == "missing"), each) for each in faults]
    # Each member of a union reports a fault: the one that got furthest is the likeliest form.
    of_field = [each for each in paths if each[0][:1] == paths[0][0][:1]]
    path, fault = max(of_field, key=lambda each: [step if isinstance(step, int) else 0 for step in each[0]])
    param, reason = field_path(path), _REASONS.get(fault["type"], fault["msg"])
    reason = reason.format(**fault.get("ctx", {}), input=shown(fault["input"])) if fault["type"] in _REASONS else reason
    return ApiError(400, f"{param}: {reason}", code="invalid_value", param=param)


def path_in(body: Any, loc: Sequence[int | str], *, missing: bool = False) -> list[int | str]:
    """Return pydantic's location without the names of union members, which are not in the body."""
    path: list[int | str] = []
    for place, step in enumerate(loc):
        if isinstance(step, int) and isinstance(body, list) and step < len(body):
            body = body[step]
        elif isinstance(step, str) and isinstance(body, dict) and (step in body or (missing and place == len(loc) - 1)):
            body = body.get(step)
        else:
            continue
        path.append(step)
    return path


def field_path(path: Sequence[int | str]) -> str:
    """Return a path in a body as clients write it: `messages[0].role`."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return steps.removeprefix(".")


async def error_response(request: Request, error: Exception) -> Response:
    """Return the response to an expected error; called by the framework."""
    state = request.state
    if isinstance(error, RequestValidationError):
        reply = from_validation(error)
    elif isinstance(error, StarletteHTTPException):
        elsewhere = error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and is_missing(request.url.path)
        reply = from_framework(StarletteHTTPException(HTTPStatus.NOT_FOUND) if elsewhere else error)
        if reply is not error and reply.status_code == HTTPStatus.NOT_FOUND:
            reply.message += f": {advice(request)}"
        if reply.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            reply.headers = _allowed(request) or reply.headers
    else:
        reply = as_api_error(error, state.request_id, state.service.retry_after())
    reply.request_id = state.request_id
    response: Response = state.dialect.response(reply)
    return response


def _allowed(request: Request) -> dict[str, str]:
    """Return the header with all methods of a path; the framework names only those of its first route."""
    routes = (each for each in request.app.state.routes if each.matches(request.scope)[0] is not Match.NONE)
    methods = {method for route in routes for method in route.methods or ()}
    return {"allow": ", ".join(sorted(methods))} if methods else {}


# What a 404 says: the route that serves what a client of another API wants, or the right base URL


_CHAT: Final = "POST /v1/chat/completions"
_ITEMS: Final = "POST /v1/responses, which takes all items of a conversation"
_TEXT: Final = "POST /v1/completions"
_VECTORS: Final = "POST /v1/embeddings"
_MODELS: Final = "GET /v1/models"
_ALL: Final = "GET /openapi.json lists all routes"

INSTEAD: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        _CHAT: (
            "/v1/assistants",
            "/v1/threads",
        ),
        _TEXT: ("/completion", "/generate", "/generate_stream", "/v1/engines"),
        _VECTORS: ("/embedding", "/pooling", "/v1/pooling"),
        "POST /v1/score, or a constraint such as `structured_outputs.choice`": ("/classify", "/v1/classify"),
        _ITEMS: ("/v1/responses/compact", "/v1/conversations"),
        "POST /tokenize": ("/v1/tokenize",),
        "POST /detokenize": ("/v1/detokenize",),
        "POST /v1/chat/completions/render": ("/apply-template", "/v1/completions/render"),
        _MODELS: ("/info", "/v1/internal/model"),
        "GET /v1/config": ("/props", "/get_server_info", "/get_model_info", "/server_info"),
        "GET /metrics": ("/slots", "/load", "/api/metrics"),
    }
)
"""Routes of other APIs, by the route here that serves what their clients want."""


def is_missing(path: str) -> bool:
    """Return whether a path is one of another API. Such a path may look like an id below a route here."""
    return path in _BY_PREFIX


def advice(request: Request) -> str:
    """Return what to do instead of requesting a path that does not exist."""
    path = request.url.path
    named = path[:128]
    right = _right_base(request)
    if right is not None:
        return f"{named}; set the client's base URL so that it sends {right}"
    for prefix, route in sorted(_BY_PREFIX.items(), key=lambda each: -len(each[0])):
        if path == prefix or path.startswith(f"{prefix}/"):
            return f"{named} is not served; use {route}"
    return f"{named} is not served; {_ALL}"


_BY_PREFIX: Final = {prefix: route for route, prefixes in INSTEAD.items() for prefix in prefixes}


def _right_base(request: Request) -> str | None:
    """Return the route below /v1 that ends like the path; None: there is none."""
    wanted = (
        route.path for route in request.app.state.routes if request.url.path.endswith(route.path.removeprefix("/v1"))
    )
    return next((each for each in wanted if each.startswith("/v1/")), None)
