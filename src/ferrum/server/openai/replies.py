"""The bodies of all replies. A reply contains exactly the fields that were given to it.

How they are filled is in `openai_builder`, `chat_completions`, `completions` and the routes.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, SkipValidation, with_config
from pydantic_core import to_json
from typing_extensions import TypedDict

from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.reply_builder import Finish


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


@with_config(ConfigDict(extra="forbid"))
class PromptToken(TypedDict):
    """A token at a position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str | None


PromptLogprobs = SkipValidation[list[dict[str, PromptToken] | None]]
"""Per prompt token the requested ids, the token itself first; None for the first token."""


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


class EmbeddingUsage(Reply):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Reply):
    """The vector of one input, scaled to length 1: numbers, or little-endian f32 bytes in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingReply(Reply):
    """The reply of /v1/embeddings."""

    id: str
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Model(Reply):
    """A served model; `parent` is the base model of an adapter, whose `root` is the last part of its path."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ErrorBody(Reply):
    """Fields of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(Reply):
    """The reply of every failed request."""

    error: ErrorBody


class Health(Reply):
    """The reply of the probes."""

    status: str


class Version(Reply):
    """The reply of /version."""

    version: str


class Cancelled(Reply):
    """The reply of DELETE /v1/requests/{id}."""

    id: str
    object: Literal["request"]
    cancelled: bool


@with_config(ConfigDict(extra="forbid"))
class TokenPiece(TypedDict):
    """A token with its text, or with its bytes if they are not valid text."""

    id: int
    piece: str | list[int]


class Tokens(Reply):
    """The reply of /tokenize; `tokens` have pieces if the request has `with_pieces`."""

    tokens: SkipValidation[list[int] | list[TokenPiece]]
    count: int
    max_model_len: int
    token_strs: list[str] | None

    def json_bytes(self) -> bytes:
        return to_json(dict(self))  # the model's own serializer checks the kind of each token: eight times slower


class Text(Reply):
    """The reply of /detokenize."""

    prompt: str
    content: str


class Rendered(Reply):
    """The reply of /v1/chat/completions/render."""

    prompt: str
    token_ids: list[int]
    count: int


class Config(Reply):
    """The reply of /v1/config."""

    server: dict[str, Any]
    engine: dict[str, Any] | None
    model: dict[str, Any]
    sampling: dict[str, Any]
