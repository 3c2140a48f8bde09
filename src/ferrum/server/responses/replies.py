"""The bodies of replies: the response, and the events of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias

from pydantic import ConfigDict

from ferrum.server.common.json_bodies import Reply
from ferrum.server.responses.diagnostics import PromptCacheDiagnostics

Status: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputDetails(Reply):
    """Details of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Reply):
    """Details of the generated tokens."""

    reasoning_tokens: int


class ResponseUsage(Reply):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(Reply):
    """Why a response failed; `type` is the code of the server's other errors."""

    code: str
    message: str
    param: str | None
    type: str


class Incomplete(Reply):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseReply(Reply):
    """The reply of /v1/responses; fields of the request are repeated."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    background: bool
    error: ResponseError | None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    prompt_cache_diagnostics: PromptCacheDiagnostics | None = None


class ItemList(Reply):
    """A page of the items that a response was generated from, earlier turns included."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(Reply):
    """The reply of DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"]
    deleted: bool


class InputTokens(Reply):
    """The reply of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Event(Reply):
    """An event of a stream; its further fields depend on its type."""

    model_config = ConfigDict(extra="allow")

    type: str
    sequence_number: int


def _class(name: str) -> type[Event]:
    class Named(Event):
        EVENT: ClassVar[str] = name

    return Named


EVENTS: Final[Mapping[str, type[Event]]] = {
    name: _class(name)
    for name in (
        *(f"response.{status}" for status in ("created", "queued", "in_progress", "completed", "incomplete", "failed")),
        *(f"response.{what}.{step}" for what in ("output_item", "content_part") for step in ("added", "done")),
        *(f"response.reasoning_summary_part.{step}" for step in ("added", "done")),
        *(
            f"response.{what}.{step}"
            for what in (
                *("output_text", "reasoning_text", "reasoning_summary_text"),
                *("function_call_arguments", "custom_tool_call_input"),
            )
            for step in ("delta", "done")
        ),
    )
}
"""The classes of events by type."""
