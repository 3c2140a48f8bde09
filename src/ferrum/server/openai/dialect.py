"""The wire form of OpenAI's API, which vLLM and most clients share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ferrum.server.common.dialect import UNNAMED_EVENT, Dialect
from ferrum.server.common.error_replies import ApiError
from ferrum.server.openai.replies import ErrorBody, ErrorReply

TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_exceeded",
    503: "unavailable_error",
}
"""Types of errors by status; other statuses use the type of their class (4xx, 5xx)."""


def _error(error: ApiError) -> bytes:
    of_class = "invalid_request_error" if error.status_code < 500 else "internal_error"
    kind = TYPES.get(error.status_code, of_class)
    return ErrorReply(
        error=ErrorBody(message=error.message, type=kind, param=error.param, code=error.code)
    ).json_bytes()


_ROUTES: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize")
"""Routes that answer in this form whatever the client's headers; those of /v1/models follow them."""

_WRONG_BASE: Final = "/api/v1"
"""The base URL of other servers of this API, which Ollama's API does not have."""

OPENAI: Final = Dialect(
    paths=("", *_ROUTES, _WRONG_BASE),
    ids=("chatcmpl-", "cmpl-", "embd-"),
    error=_error,
    event=UNNAMED_EVENT,
    end=b"data: [DONE]\n\n",
)
