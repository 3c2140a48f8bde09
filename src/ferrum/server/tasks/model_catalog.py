"""/v1/models in three shapes: OpenAI's, Anthropic's for clients whose headers ask for it, and Codex's list `models`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, Literal

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ferrum.server.anthropic import routes as messages
from ferrum.server.anthropic.routes import MESSAGES
from ferrum.server.common.error_replies import STATUSES
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.json_routes import reply
from ferrum.server.common.openai_errors import ErrorReply
from ferrum.server.common.served_model import ServedModel, listed_models, read_variables
from ferrum.server.common.service import Service

# OpenAI's shape, and the routes


class Model(Reply):
    """A served model; `parent` is the base model of an adapter, whose `root` is the last part of its path.

    `capabilities` are in Ollama's words.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    capabilities: list[str]


def add_model_routes(router: APIRouter, service: Service) -> None:
    """Add the routes."""

    def described(model: ServedModel, name: str) -> Model:
        return Model(
            id=name,
            object="model",
            created=service.started,
            owned_by="ferrum",
            root=model.root,
            parent=model.parent,
            max_model_len=model.context,
            capabilities=capabilities(model),
        )

    page = {"model": ModelList | ModelPage}
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorReply | messages.ErrorReply, "description": STATUSES[status]}
        for status in (401, 404, 503)
    }
    errors[messages.OVERLOADED] = {"model": messages.ErrorReply, "description": STATUSES[503]}

    @router.get("/v1/models", responses={200: page, **{each: errors[each] for each in errors if each != 404}})
    async def models(request: Request) -> Response:
        """List the names of the models that are served, in the shape of the API whose headers the client sends."""
        service.model()
        every = [(each, name) for name, each in listed_models(service.models)]
        if wants_anthropic(request):
            return reply(model_page(model_info(service, each, name) for each, name in every))
        data = [described(each, name) for each, name in every]
        codex = [codex_model(each, name, place) for place, (each, name) in enumerate(every)]
        return reply(ModelList(object="list", data=data, models=codex))

    @router.get("/v1/models/{model_id:path}", responses={200: {"model": Model | ModelInfo}, **errors})
    async def one_model(model_id: str, request: Request) -> Response:
        """Return a model by its name."""
        model = service.model(model_id)
        name = model_id if model_id in model.names else model.name
        return reply(model_info(service, model, name) if wants_anthropic(request) else described(model, name))


def capabilities(model: ServedModel) -> list[str]:
    """Return `completion`, and `vision` if the model reads images."""
    return ["completion", "vision"] if model.client.reads_images else ["completion"]


# Anthropic's shape


class ModelInfo(Reply):
    """A served model; `max_input_tokens` is its context."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int
    max_tokens: int
    capabilities: dict[str, dict[str, bool]]


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
        capabilities={"image_input": {"supported": model.client.reads_images}},
    )


def model_page(models: Iterable[ModelInfo]) -> ModelPage:
    """Return the only page of the list."""
    data = list(models)
    ids = [each.id for each in data]
    return ModelPage(data=data, has_more=False, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None)


# Codex's shape


_LEVELS: Final = {
    "low": "Less reasoning",
    "medium": "Reasoning as the model chooses",
    "high": "More reasoning",
}
_LONGEST_OUTPUT: Final = 10_000
"""Tokens of a tool's output that Codex sends; its own default."""

_INSTRUCTIONS: Final = (
    "You are a coding agent in the user's terminal. Read what you need before you change it. Change files with"
    " apply_patch, run commands with the shell tool, and check your changes. Go on until the task is done, then say in"
    " a few sentences what you did."
)
"""Instructions for agents: Codex uses those of a listed model, and accepts no model without."""


class CodexModel(Reply):
    """A served model as Codex describes models; `context_window` is its context."""

    slug: str
    display_name: str
    description: str
    supported_reasoning_levels: list[dict[str, str]]
    shell_type: Literal["shell_command"]
    visibility: Literal["list"]
    supported_in_api: Literal[True]
    priority: int
    upgrade: None
    base_instructions: str
    supports_reasoning_summaries: bool
    supports_reasoning_summary_parameter: bool
    support_verbosity: Literal[False]
    default_verbosity: None
    apply_patch_tool_type: Literal["freeform"]
    truncation_policy: dict[str, Any]
    supports_parallel_tool_calls: Literal[True]
    context_window: int
    max_context_window: int
    experimental_supported_tools: list[str]
    input_modalities: list[Literal["text", "image"]]


class ModelList(Reply):
    """The reply of /v1/models."""

    object: Literal["list"]
    data: list[Model]
    models: list[CodexModel]


def codex_model(model: ServedModel, name: str, place: int) -> CodexModel:
    """Return a model under one of its names; `place` is that in the list."""
    efforts = read_variables(model.client, {"reasoning_effort": "low"})
    return CodexModel(
        slug=name,
        display_name=name,
        description="A model that ferrum serves.",
        supported_reasoning_levels=[{"effort": e, "description": d} for e, d in _LEVELS.items()] if efforts else [],
        shell_type="shell_command",
        visibility="list",
        supported_in_api=True,
        priority=place,
        upgrade=None,
        base_instructions=_INSTRUCTIONS,
        supports_reasoning_summaries=True,
        supports_reasoning_summary_parameter=True,
        support_verbosity=False,
        default_verbosity=None,
        apply_patch_tool_type="freeform",
        truncation_policy={"mode": "tokens", "limit": _LONGEST_OUTPUT},
        supports_parallel_tool_calls=True,
        context_window=model.context,
        max_context_window=model.context,
        experimental_supported_tools=[],
        input_modalities=["text", "image"] if model.client.reads_images else ["text"],
    )
