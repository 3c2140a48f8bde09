"""The replies of Ollama's API. Durations are in nanoseconds, times in RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ferrum.server.common.json_bodies import Reply


class ErrorReply(Reply):
    """An error, as a reply or as the last line of a stream."""

    error: str


class CalledFunction(Reply):
    """The function of a call."""

    index: int
    name: str
    arguments: dict[str, Any]


class ToolCall(Reply):
    """A call of a tool."""

    id: str
    function: CalledFunction


class Message(Reply):
    """The assistant's message, or what is new in it."""

    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None


class Generated(Reply):
    """What lines of a stream and whole replies share; the counts are in the last line."""

    model: str
    created_at: str
    done: bool
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class ChatReply(Generated):
    """The reply of /api/chat, or a line of it."""

    message: Message


class GenerateReply(Generated):
    """The reply of /api/generate, or a line of it."""

    response: str
    thinking: str | None = None


class EmbedReply(Reply):
    """The reply of /api/embed."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingReply(Reply):
    """The reply of /api/embeddings."""

    embedding: list[float]


class Details(Reply):
    """What is known of a model's weights."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ModelEntry(Reply):
    """A model in a list; `size` is in bytes of memory. Those of /api/ps have the fields from `expires_at` on."""

    name: str
    model: str
    size: int
    digest: str
    details: Details
    modified_at: str | None = None
    expires_at: str | None = None
    size_vram: int | None = None
    context_length: int | None = None


class ModelList(Reply):
    """The reply of /api/tags and /api/ps."""

    models: list[ModelEntry]


class Shown(Reply):
    """The reply of /api/show."""

    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class Version(Reply):
    """The reply of /api/version."""

    version: str


def written_time(seconds: float) -> str:
    """Return a time since 1970 as text."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
