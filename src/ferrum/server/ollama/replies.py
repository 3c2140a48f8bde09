"""The replies of Ollama's API, and the builder of those that are generated.

Durations are in nanoseconds, times in RFC 3339.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ferrum.client.request_output import Delta
from ferrum.formats.output_parts import PartKind
from ferrum.server.chat.ask import Asked
from ferrum.server.chat.turn import Counts, Item, ReplyBuilder, ReplyHeader, arguments_of
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


# The builders

_NANOSECONDS: Final = 1_000_000_000


class OllamaBuilder(ReplyBuilder[dict[str, Any]]):
    """Builds the reply to a chat or a completion; pieces are the fields of a message that are new.

    Args:
        header: of every line.
        asked: the engine's request for it.
        chat: the reply is a message; that to a completion has no calls.
    """

    uniform = True

    def __init__(self, header: ReplyHeader, asked: Asked, *, chat: bool) -> None:
        super().__init__(header, asked)
        self._header: dict[str, Any] = {"model": header.model, "created_at": written_time(header.created)}
        self._chat = chat

    def grown(self, item: Item, text: str) -> Iterator[dict[str, Any]]:
        """Yield new text. A call is sent whole at its end."""
        if item.kind is not PartKind.CALL:
            yield {"thinking" if item.kind is PartKind.REASONING else "content": text}

    def ended(self, item: Item) -> Iterator[dict[str, Any]]:
        """Yield a call; one that is cut off is not sent."""
        if item.whole:
            yield {"tool_calls": [_call(item)]}

    def chunks(self, place: int, delta: Delta) -> Iterator[Generated]:
        """Yield a line for each piece of a delta."""
        for fields in self.pieces(place, delta):
            yield self._line(fields, {"done": False})

    def end_chunks(self) -> Iterator[Generated]:
        """Yield the last line, which has the counts."""
        yield self._line({}, self._end())

    def whole(self) -> Generated:
        [turn] = self.turns.values()
        texts = {"content": turn.text(PartKind.CONTENT), "thinking": turn.text(PartKind.REASONING)}
        fields: dict[str, Any] = {name: text for name, text in texts.items() if text is not None}
        calls = [_call(each) for each in turn.calls if each.whole]
        return self._line(fields | ({"tool_calls": calls} if calls else {}), self._end())

    def _end(self) -> dict[str, Any]:
        [turn] = self.turns.values()
        return {"done": True, "done_reason": turn.finish, **_counts(self.usage)}

    def _line(self, fields: Mapping[str, Any], about: Mapping[str, Any]) -> Generated:
        """Return a reply with the fields of a message."""
        texts = {"content": "", **fields}
        if self._chat:
            return ChatReply(**self._header, **about, message=Message(role="assistant", **texts))
        return GenerateReply(**self._header, **about, response=texts.pop("content"), **texts)


def _call(item: Item) -> ToolCall:
    function = CalledFunction(index=item.number, name=item.name, arguments=arguments_of(item.text))
    return ToolCall(id=item.id, function=function)


def _counts(counts: Counts) -> dict[str, int]:
    """Return the tokens and times of a reply. No duration is 0: clients divide by them."""
    end = counts.arrival if counts.last is None else counts.last
    begun = counts.arrival if counts.scheduled is None else counts.scheduled
    first = end if counts.first is None else counts.first
    return {
        "total_duration": _nanoseconds(end - counts.arrival),
        "load_duration": 0,
        "prompt_eval_count": counts.prompt,
        "prompt_eval_duration": _nanoseconds(first - begun),
        "eval_count": counts.completion,
        "eval_duration": _nanoseconds(end - first),
    }


def _nanoseconds(seconds: float) -> int:
    return max(1, round(seconds * _NANOSECONDS))
