"""The models in Anthropic's shape, for clients whose headers ask for it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from starlette.requests import Request

from ferrum.server.anthropic.routes import MESSAGES
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.served_model import ServedModel
from ferrum.server.common.service import Service


class ModelInfo(Reply):
    """A served model; `max_input_tokens` is its context."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int


class ModelPage(Reply):
    """All served models on one page."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def wants_anthropic(request: Request) -> bool:
    """Return whether a client of this API asks, by headers that others do not send."""
    return request.state.dialect is MESSAGES


def model_info(service: Service, model: ServedModel, name: str) -> ModelInfo:
    """Return a model under one of its names."""
    return ModelInfo(
        type="model",
        id=name,
        display_name=name,
        created_at=datetime.fromtimestamp(service.started, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        lifecycle="active",
        max_input_tokens=model.context,
        max_tokens=model.context,
    )


def model_page(models: Iterable[ModelInfo]) -> ModelPage:
    """Return the only page of the list."""
    data = list(models)
    ids = [each.id for each in data]
    return ModelPage(data=data, has_more=False, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None)
