"""What a 404 says: the route that serves what a client of another API wants, or the right base URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from starlette.requests import Request

_CHAT: Final = "POST /v1/chat/completions"
_ITEMS: Final = "POST /v1/responses, which takes all items of a conversation"
_TURNS: Final = "POST /v1/responses, which continues a stored response by previous_response_id"
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
        _TURNS: ("/v1/sessions",),
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
