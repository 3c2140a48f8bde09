"""The OpenAPI document of a server: that of its routes, and of the model that it serves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ferrum.core.params import TOKEN_SCHEMA
from ferrum.server.service import Service, State


def document(app: FastAPI, service: Service) -> dict[str, Any]:
    """The document, without the status that the framework thinks it sends for faulty bodies: ours is 400."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    made = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for operations in made["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        made["components"]["schemas"].pop(name, None)
    if service.state is State.READY:
        _bound_tokens(made["components"]["schemas"], service.engine.info.vocab_size)
        app.openapi_schema = made
    return made


def _bound_tokens(schema: Any, vocab_size: int) -> None:
    """Say of every token id in a schema which ones the model has."""
    if isinstance(schema, dict):
        if schema.get("format") == TOKEN_SCHEMA["format"]:
            schema["maximum"] = vocab_size - 1
        for part in schema.values():
            _bound_tokens(part, vocab_size)
    elif isinstance(schema, list):
        for part in schema:
            _bound_tokens(part, vocab_size)
