"""The bodies of replies of chats, whole and streamed; see `replies` for the others."""

from __future__ import annotations

from typing import Literal

from pydantic import SkipValidation

from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.reply_builder import Finish
from ferrum.server.openai.replies import PromptLogprobs, TokenLogprob, Usage


class ChatLogprobs(Reply):
    """The tokens of a message."""

    content: SkipValidation[list[TokenLogprob]]
    refusal: None


class FunctionCall(Reply):
    """A called function: its name, and its arguments as JSON text. Deltas have parts of it."""

    name: str | None = None
    arguments: str


class CustomCall(Reply):
    """A call of a custom tool: its name and its text. Deltas have parts of it."""

    name: str | None = None
    input: str


class ToolCall(Reply):
    """A tool call; deltas have its place in the message, and its id and type only in the first one."""

    index: int | None = None
    id: str | None = None
    type: Literal["function", "custom"] | None = None
    function: FunctionCall | None = None
    custom: CustomCall | None = None


class ChatMessage(Reply):
    """The assistant's message. `reasoning_content` is another name of `reasoning`."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None


class ChatChoice(Reply):
    """One choice of a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: int | str | None
    token_ids: list[int] | None = None


class ChatReply(Reply):
    """The reply of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class ChatDelta(Reply):
    """The new part of a message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None


class ChatChunkChoice(Reply):
    """The new part of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatChunk(Reply):
    """One event of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    usage: Usage | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
