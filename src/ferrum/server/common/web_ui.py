"""The web page at `/`: static files that send requests to this server only."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import Response

STATIC: Final = files("ferrum.server") / "static"

MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Media types of the files by the end of their names."""


def _names(folder: Traversable, prefix: str = "") -> Iterator[str]:
    """Yield the paths of all files below a folder."""
    for each in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if each.is_dir():
            yield from _names(each, f"{prefix}{each.name}/")
        else:
            yield f"{prefix}{each.name}"


WEB_UI_PATHS: Final = {"/" if name == "index.html" else f"/page/{name}": name for name in _names(STATIC)}
"""The path of each file. No API key is required: the files contain no secrets."""

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify",
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
        content = STATIC.joinpath(*name.split("/")).read_bytes()
        if keys:
            content = content.replace(b'data-keys="none"', b'data-keys="needed"')
        router.add_api_route(path, _file(content, MEDIA_TYPES[PurePosixPath(name).suffix]), include_in_schema=False)


def _file(content: bytes, media_type: str) -> Callable[[], Coroutine[Any, Any, Response]]:
    async def file() -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)

    return file
