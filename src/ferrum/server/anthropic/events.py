"""The events of a streamed message, and the whole message that they fold into."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from ferrum.server.common.json_bodies import Reply

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class OutputDetails(Reply):
    """Details of the generated tokens."""

    thinking_tokens: int


class MessageUsage(Reply):
    """Tokens of a request; `input_tokens` are those of the prompt that were not cached."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens_details: OutputDetails


class TextContent(Reply):
    """Text of a reply."""

    type: Literal["text"] = "text"
    text: str


class ThinkingContent(Reply):
    """Reasoning of a reply."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class ToolUseContent(Reply):
    """A call of a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


Content: TypeAlias = TextContent | ThinkingContent | ToolUseContent


class CacheMiss(Reply):
    """Why a prompt shares no longer prefix with an earlier one.

    Attributes:
        first_differing_token: its index in the prompt.
        place: path of what it stands in.
        cause: path of what changed.
    """

    type: Literal["system_changed", "tools_changed", "messages_changed", "previous_message_not_found", "unavailable"]
    cache_missed_input_tokens: int = 0
    first_differing_token: int = 0
    place: str | None = None
    cause: str | None = None


class Diagnostics(Reply):
    """The comparison with an earlier prompt."""

    cache_miss_reason: CacheMiss


class MessageReply(Reply):
    """The reply of /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    diagnostics: Diagnostics | None = None


class MessageStart(Reply):
    """The message before its content."""

    EVENT: ClassVar[str] = "message_start"
    type: Literal["message_start"]
    message: MessageReply


class Ping(Reply):
    """An event without content, as this API sends after the message's start and on an idle stream."""

    EVENT: ClassVar[str] = "ping"
    type: Literal["ping"] = "ping"


class BlockStart(Reply):
    """The begin of a block, which is empty."""

    EVENT: ClassVar[str] = "content_block_start"
    type: Literal["content_block_start"]
    index: int
    content_block: Content


class PartDelta(Reply):
    """New text of a block: the field named like the type without `_delta`, or `partial_json`."""

    type: Literal["text_delta", "thinking_delta", "signature_delta", "input_json_delta"]
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""


class BlockDelta(Reply):
    """New text of the open block."""

    EVENT: ClassVar[str] = "content_block_delta"
    type: Literal["content_block_delta"]
    index: int
    delta: PartDelta


class BlockStop(Reply):
    """The end of the open block."""

    EVENT: ClassVar[str] = "content_block_stop"
    type: Literal["content_block_stop"]
    index: int


class Stop(Reply):
    """Why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Reply):
    """The end of the message, with all its tokens."""

    EVENT: ClassVar[str] = "message_delta"
    type: Literal["message_delta"]
    delta: Stop
    usage: MessageUsage


class MessageStop(Reply):
    """The last event."""

    EVENT: ClassVar[str] = "message_stop"
    type: Literal["message_stop"]


class TokenCount(Reply):
    """The reply of /v1/messages/count_tokens."""

    input_tokens: int
