"""The models in the shape of Codex, which reads `models` where other clients of OpenAI's API read `data`."""

from __future__ import annotations

from typing import Any, Final, Literal

from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.served_model import ServedModel, read_variables
from ferrum.server.openai.replies import Model

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
    input_modalities: list[Literal["text"]]


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
        input_modalities=["text"],
    )
