"""The OpenAPI document: generated from the routes, corrected, and completed with limits of the model.

What the types of fields cannot express is in `field_rules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ferrum.core.param_values import TOKEN_SCHEMA
from ferrum.core.params import ALL_TOKENS
from ferrum.server.common.field_rules import TOP_TOKENS
from ferrum.server.common.service import Service, State

_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def document(app: FastAPI, service: Service) -> dict[str, Any]:
    """Return the document, without FastAPI's status 422: faulty bodies get 400."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    made = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for operations in made["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        made["components"]["schemas"].pop(name, None)
    for schema in _objects(made):
        _write_whole(schema)
    if service.state is State.READY:
        for schema in _objects(made):
            if schema.get("format") == TOKEN_SCHEMA["format"]:
                schema["maximum"] = service.model().engine.info.vocab_size - 1
            elif schema.get("format") == TOP_TOKENS:
                _bound_top_tokens(schema, service)
        app.openapi_schema = made
    return made


def _bound_top_tokens(schema: dict[str, Any], service: Service) -> None:
    most = service.config.max_logprobs
    schema["maximum"] = min(most, schema.get("maximum", most))
    if schema["minimum"] == ALL_TOKENS and service.model().engine.info.vocab_size > most:
        schema["minimum"] = 0


def _write_whole(schema: dict[str, Any]) -> None:
    """Write integral bounds as integers: the framework makes floats, which cannot represent 2**63 exactly."""
    for name in _BOUNDS:
        bound = schema.get(name)
        if isinstance(bound, float) and bound.is_integer():
            schema[name] = int(bound)


def _objects(part: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a part of a document, outermost first."""
    if isinstance(part, dict):
        yield part
        part = list(part.values())
    for inner in part if isinstance(part, list) else ():
        yield from _objects(inner)
