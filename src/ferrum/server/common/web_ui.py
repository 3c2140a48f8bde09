"""The web page at `/`: static files that send requests to this server only."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import Response

MEDIA_TYPES: Final = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "stream.js": "text/javascript; charset=utf-8",
    "tokens.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The files and their media types."""

WEB_UI_PATHS: Final = {"/" if name == "index.html" else f"/page/{name}": name for name in MEDIA_TYPES}
"""The path of each file. No API key is required: the files contain no secrets."""

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Headers that make browsers enforce the page's restrictions."""


def add_web_ui(router: APIRouter, *, keys: bool) -> None:
    """Add a route for each file of the page.

    Args:
        router: gets the routes, which are not part of the OpenAPI document.
        keys: whether the page asks its user for an API key.
    """
    for path, name in WEB_UI_PATHS.items():
        content = (files("ferrum.server") / "static" / name).read_bytes()
        if keys:
            content = content.replace(b'data-keys="none"', b'data-keys="needed"')
        router.add_api_route(path, _file(content, MEDIA_TYPES[name]), include_in_schema=False)


def _file(content: bytes, media_type: str) -> Callable[[], Coroutine[Any, Any, Response]]:
    async def file() -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)

    return file
