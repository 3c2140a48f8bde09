"""What all routes share: strict JSON bodies, and fields that are named because they have no effect."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.responses import Response
from starlette.types import Scope

from ferrum.server.common.error_replies import ApiError
from ferrum.server.common.json_bodies import Body, Reply
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service

AddRoutes: TypeAlias = Callable[[APIRouter, Service], None]
"""Adds the routes of a dialect to a router."""

MAX_NAMED: Final = 32
"""Ignored fields that the header names."""


class JsonRequest(Request):
    """A request whose body must be strict JSON.

    Refused are NaN, lone surrogates, numbers of thousands of digits and hundreds of levels of nesting.
    """

    async def body(self) -> bytes:
        """Return the body. Raises ApiError, 415, if its content type is not JSON or it is compressed."""
        header = Message()
        header["content-type"] = self.headers.get("content-type", "")
        if header.get_content_type() != "application/json":
            raise ApiError(415, "the content type must be application/json", code="unsupported_media_type")
        encoding = self.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            reason = f"the content encoding {encoding!r} is not supported; send the body uncompressed"
            raise ApiError(415, reason, code="unsupported_media_type", headers={"accept-encoding": "identity"})
        return await super().body()

    async def json(self) -> Any:
        """Return the body's value. Raises ApiError if it is not JSON."""
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from None


class JsonRoute(APIRoute):
    """A route that reads its body as a `JsonRequest`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(JsonRequest(_typed(request.scope), request.receive) if self.body_field else request)

        return strict


def _typed(scope: Scope) -> Scope:
    """Return the scope of a request, with the content type of JSON where the dialect's clients leave it out.

    Requests of pages have an `origin` and must name it: browsers ask the server before they send such a request.
    """
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    if scope["state"]["dialect"].typed or any(name == b"origin" for name, _ in headers):
        return scope
    return {**scope, "headers": [*headers, (b"content-type", b"application/json")]}


def reply(body: Reply) -> Response:
    """Return a whole reply as a response."""
    return Response(body.json_bytes(), media_type="application/json")


def add_heads(router: APIRouter) -> None:
    """Serve HEAD wherever GET is served, as HTTP demands (RFC 9110, 9.1); it is not in the OpenAPI document."""
    for route in [each for each in router.routes if isinstance(each, APIRoute) and "GET" in (each.methods or ())]:
        router.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)


def has_template(body: Body) -> bool:
    """Return whether a client sends a chat template."""
    return getattr(body, "chat_template", None) is not None


def ignored(service: Service, body: Body, model: ServedModel | None = None) -> dict[str, str]:
    """Return the header that names fields without effect. Raises as `Body.check_fields`.

    Args:
        model: whose chat template may read fields of the body.
    """
    asks = model is not None and not body.FOR_TEMPLATE.isdisjoint(body.model_fields_set)
    unread = body.unread_fields(model.client) if model is not None and asks else []
    names = [*unread, *body.check_fields(strict=service.config.strict)]
    # A header must not end with a space, so an empty name is written as two quotation marks.
    shown = [quote(name[:128], safe="[]") or '""' for name in names[:MAX_NAMED]]
    return {"x-ferrum-ignored": ", ".join(shown)} if shown else {}
