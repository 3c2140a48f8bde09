"""What clients send: the bodies of all routes, their fields' types, and which fields have no effect or are refused.

Ranges are checked where the values are used (`SamplingParams`, the engine's admission), so they are said once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from ferrum.core.params import SamplingParams

_HELP: Final = {each.name: each.metadata["help"] for each in fields(SamplingParams)}


def _sampling(name: str) -> Any:
    """A field that means what the sampling parameter of that name means; null is its default."""
    return Field(default=None, description=_HELP[name])


class Body(BaseModel):
    """A JSON object. Unknown fields are kept, to be named to the client.

    Attributes:
        NO_OPS: known fields without an effect on the reply, and why.
        REFUSED: known fields that are not served, and why; null is as good as absent.
        PASSES_ON: unknown fields have an effect: they are passed on.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())
    NO_OPS: ClassVar[Mapping[str, str]] = MappingProxyType({})
    REFUSED: ClassVar[Mapping[str, str]] = MappingProxyType({})
    PASSES_ON: ClassVar[bool] = False


class StreamOptions(Body):
    """How a stream ends and what its chunks carry."""

    NO_OPS = MappingProxyType({"include_obfuscation": "chunks are never padded"})

    include_usage: bool | None = Field(default=None, description="One more chunk at the end, with the usage.")
    include_obfuscation: bool | None = Field(default=None, description="No effect: chunks are never padded.")
    continuous_usage_stats: bool | None = Field(default=None, description="The usage so far in every chunk.")


class ContentPart(Body):
    """A part of a message; `text` and, of an assistant, `refusal` are served."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Message(Body):
    """One message of a conversation. Fields beyond these go to the chat template as they are."""

    PASSES_ON = True

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    refusal: str | None = None


class Prediction(Body):
    """What the reply may be like: it is verified instead of being generated as far as it agrees."""

    type: Literal["content"]
    content: str | list[ContentPart]


class ResponseFormat(Body):
    """The form of the reply; only `text` is served."""

    type: Literal["text", "json_object", "json_schema"]


class GenerationBody(Body):
    """What both generating routes take."""

    NO_OPS = MappingProxyType(
        {
            "user": "nothing is counted per user",
            "spaces_between_special_tokens": "decoding never adds spaces",
        }
    )
    REFUSED = MappingProxyType(
        {
            "structured_outputs": "structured outputs are not served yet",
            "logprob_token_ids": "log-probabilities of chosen ids are not served; see logprobs",
            "thinking_token_budget": "reasoning is not told apart from text",
        }
    )

    model: str = Field(description="A name from /v1/models.")
    n: int | None = _sampling("n")
    temperature: float | None = _sampling("temperature")
    top_p: float | None = _sampling("top_p")
    top_k: int | None = _sampling("top_k")
    min_p: float | None = _sampling("min_p")
    seed: int | None = _sampling("seed")
    stop: str | list[str] | None = _sampling("stop")
    stop_token_ids: list[int] | None = _sampling("stop_token_ids")
    bad_words: list[str] | None = _sampling("bad_words")
    include_stop_str_in_output: bool | None = _sampling("include_stop_str_in_output")
    ignore_eos: bool | None = _sampling("ignore_eos")
    max_tokens: int | None = _sampling("max_tokens")
    min_tokens: int | None = _sampling("min_tokens")
    prompt_logprobs: int | None = _sampling("prompt_logprobs")
    presence_penalty: float | None = _sampling("presence_penalty")
    frequency_penalty: float | None = _sampling("frequency_penalty")
    repetition_penalty: float | None = _sampling("repetition_penalty")
    logit_bias: dict[str, float] | None = _sampling("logit_bias")
    allowed_token_ids: list[int] | None = _sampling("allowed_token_ids")
    skip_special_tokens: bool | None = _sampling("skip_special_tokens")
    stream: bool | None = Field(default=None, description="Send the reply as server-sent events.")
    stream_options: StreamOptions | None = None
    echo: bool | None = Field(
        default=None, description="Begin the reply with the prompt (chat: the message continued)."
    )
    priority: int | None = Field(default=None, description="Smaller is served first, under the priority policy.")
    request_id: str | None = Field(default=None, description="Names the request; not that of a live one.")
    cache_salt: str | None = Field(default=None, description="Keeps cached prefixes apart; not empty.")
    truncate_prompt_tokens: int | None = Field(
        default=None, description="Keep so many tokens from the prompt's end; -1: as many as fit."
    )
    add_special_tokens: bool | None = Field(default=None, description="Add the special tokens around a text.")
    return_token_ids: bool | None = Field(default=None, description="Token ids of prompt and choices in the reply.")
    return_tokens_as_token_ids: bool | None = Field(
        default=None, description="Tokens of log-probabilities as token_id:N."
    )
    user: str | None = Field(default=None, description="No effect.")
    spaces_between_special_tokens: bool | None = Field(default=None, description="No effect.")


_TOOLS: Final = "tools are not served yet"


class TemplateBody(Body):
    """A conversation, and how its template renders it."""

    messages: list[Message] = Field(min_length=1)
    add_generation_prompt: bool | None = Field(default=None, description="Begin the assistant's turn.")
    continue_final_message: bool | None = Field(default=None, description="Go on with the last message.")
    chat_template: str | None = Field(default=None, description="In place of the model's own.")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Variables for the template.")
    add_special_tokens: bool | None = Field(default=None, description="Add special tokens around the rendered text.")


class ChatRequest(GenerationBody, TemplateBody):
    """The body of /v1/chat/completions."""

    NO_OPS = MappingProxyType(
        {
            **GenerationBody.NO_OPS,
            "metadata": "nothing is stored",
            "safety_identifier": "nothing is counted per user",
            "prompt_cache_key": "one cache serves all",
            "prompt_cache_retention": "one cache serves all",
            "service_tier": "there is one tier",
            "store": "nothing is stored",
            "verbosity": "the model has no such dial",
        }
    )
    REFUSED = MappingProxyType(
        {
            **GenerationBody.REFUSED,
            "tools": _TOOLS,
            "tool_choice": _TOOLS,
            "parallel_tool_calls": _TOOLS,
            "functions": _TOOLS,
            "function_call": _TOOLS,
            "reasoning_effort": "reasoning is steered by chat_template_kwargs, where the model's template knows of it",
            "audio": "text only",
            "web_search_options": "there is no web search",
            "moderation": "there is no moderation",
        }
    )

    logprobs: bool | None = Field(default=None, description="Report the log-probabilities of the tokens.")
    top_logprobs: int | None = Field(default=None, description="And of so many top tokens, 0 to 20; needs logprobs.")
    max_completion_tokens: int | None = Field(default=None, description="As max_tokens, and goes before it.")
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = Field(
        default=None, description="What the reply may be like. It is the same without, and sooner there with it."
    )
    modalities: list[Literal["text", "audio"]] | None = Field(default=None, description="Text only.")
    include_reasoning: bool | None = Field(default=None, description="False is refused: reasoning is part of the text.")
    metadata: dict[str, str] | None = Field(default=None, description="No effect.", max_length=16)
    safety_identifier: str | None = Field(default=None, description="No effect.", max_length=64)
    prompt_cache_key: str | None = Field(default=None, description="No effect.")
    prompt_cache_retention: str | None = Field(default=None, description="No effect.")
    service_tier: str | None = Field(default=None, description="No effect.")
    store: bool | None = Field(default=None, description="No effect.")
    verbosity: Literal["low", "medium", "high"] | None = Field(default=None, description="No effect.")


class CompletionRequest(GenerationBody):
    """The body of /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(description="A text or its token ids, or several.")
    suffix: str | None = Field(
        default=None, description="What comes after the completion, for models that fill in the middle."
    )
    best_of: int | None = Field(
        default=None, description="Generate so many, return the n likeliest per token; 0 to 20."
    )
    logprobs: int | None = Field(default=None, description="Report each token's and so many top ones, 0 to 5.")
    response_format: ResponseFormat | None = None


class EmbeddingRequest(Body):
    """The body of /v1/embeddings; unknown fields are refused."""

    NO_OPS = MappingProxyType({"user": "nothing is counted per user"})

    model: str = Field(description="A name from /v1/models.")
    input: str | list[str] | list[int] | list[list[int]] = Field(description="A text or its token ids, or several.")
    encoding_format: Literal["float", "base64"] | None = Field(
        default=None, description="base64: little-endian floats."
    )
    dimensions: int | None = Field(default=None, description="Those of the model, or refused.")
    user: str | None = Field(default=None, description="No effect.")


class RenderRequest(TemplateBody):
    """The body of /v1/chat/completions/render."""

    REFUSED = MappingProxyType({"tools": _TOOLS, "documents": "the template gets none"})

    model: str | None = None


class TokenizeRequest(Body):
    """The body of /tokenize, in vLLM's form (`prompt` or `messages`) or llama.cpp's (`content`)."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    content: str | None = None
    add_special_tokens: bool | None = Field(default=None, description="Default: true for a prompt.")
    add_special: bool | None = Field(default=None, description="As add_special_tokens, for content; default false.")
    parse_special: bool | None = Field(default=None, description="False is refused: the tokenizer always parses them.")
    return_token_strs: bool | None = Field(default=None, description="The text of each token, too.")
    with_pieces: bool | None = Field(default=None, description="For content: each token with its text.")
    add_generation_prompt: bool | None = Field(default=None, description="Begin the assistant's turn.")
    continue_final_message: bool | None = Field(default=None, description="Go on with the last message.")
    chat_template: str | None = Field(default=None, description="In place of the model's own.")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Variables for the template.")


class DetokenizeRequest(Body):
    """The body of /detokenize; the reply has the text under both names, `prompt` and `content`."""

    model: str | None = None
    tokens: list[int]
