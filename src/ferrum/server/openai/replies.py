"""The bodies of all replies. A reply contains exactly the fields that were given to it.

How they are filled is in `builders` and the routes.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import ConfigDict, SkipValidation, with_config
from typing_extensions import TypedDict

from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.top_tokens import PromptLogprobs

Finish: TypeAlias = Literal["stop", "length", "tool_calls", "function_call"]
"""Why a choice ended."""


class PromptDetails(Reply):
    """Details of the prompt's tokens."""

    cached_tokens: int


class CompletionDetails(Reply):
    """Details of the completions' tokens."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Reply):
    """Tokens of a request: those of its prompts once, those of all its choices. Only the last usage has details."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


# A reply may have millions of these: plain dictionaries need a third of the memory of models, and half the time.
@with_config(ConfigDict(extra="forbid"))
class TopLogprob(TypedDict):
    """One of the most likely tokens of a position."""

    token: str
    logprob: float
    bytes: list[int] | None


@with_config(ConfigDict(extra="forbid"))
class TokenLogprob(TopLogprob):
    """A token of the reply."""

    top_logprobs: list[TopLogprob]


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


class CompletionLogprobs(Reply):
    """Tokens of a text in four lists of equal length; the first token of an echoed prompt has no scores."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Reply):
    """One completion, or the new part of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class CompletionReply(Reply):
    """The reply of /v1/completions, or one event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    usage: Usage | None = None
