"""The bodies that clients send: the fields of all routes, their types, and fields without effect or refused.

Values are checked in `openai.checks`. Schemas beyond types, for the OpenAPI document, are in `openapi_rules`.
"""

from __future__ import annotations

import re
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import ConfigDict, Field

from ferrum.core.params import ALL_TOKENS, TOKEN_SCHEMA, SamplingParams, value_schema
from ferrum.engine.model_client import ModelClient
from ferrum.server.common import openapi_rules
from ferrum.server.common.json_bodies import MODEL, Body, GeneratingBody
from ferrum.server.common.openapi_rules import Items, JsonInteger, TokenId

MAX_TOP_LOGPROBS: Final = 20
MAX_LOGPROBS: Final = 5
MAX_BEST_OF: Final = 20

_HELP: Final = {each.name: each.metadata["help"] for each in fields(SamplingParams)}


def _sampling(name: str) -> Any:
    """Return the field of a sampling parameter; null is its default."""
    return Field(default=None, description=_HELP[name], json_schema_extra=value_schema(name))


_NO_EFFECT: Final[Any] = Field(default=None, description="No effect, whatever its value.")


def _optional(description: str, schema: openapi_rules.Schema) -> Any:
    """Return a field that may be absent or null, with a schema beyond its type."""
    return Field(default=None, description=description, json_schema_extra=schema)


def _rules(schema: openapi_rules.Schema) -> ConfigDict:
    """Return a configuration with a schema beyond those of the fields."""
    return ConfigDict(json_schema_extra=schema)


_KEPT: Final[Any] = _optional(
    "Keep this many tokens at the end of the prompt; -1: as many as fit.",
    openapi_rules.between(-1) | openapi_rules.not_this(0),
)


class StreamOptions(Body):
    """Options for the usage in a stream."""

    NO_OPS = MappingProxyType({"include_obfuscation": "chunks are never padded"})

    include_usage: bool | None = Field(default=None, description="Send one more chunk with the usage at the end.")
    include_obfuscation: Any = _NO_EFFECT
    continuous_usage_stats: bool | None = Field(
        default=None, description="Send the usage so far in every chunk, unless include_usage is false."
    )


class ContentPart(Body):
    """A part of a message; only `text` and an assistant's `refusal` are served."""

    model_config = _rules(openapi_rules.PART)

    type: str
    text: str | None = None
    refusal: str | None = None


class Message(Body):
    """One message of a conversation. Other fields are passed to the chat template."""

    model_config = _rules(openapi_rules.MESSAGE)
    PASSES_ON = True

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | Items[ContentPart] | None = Field(default=None, json_schema_extra={"minItems": 1})
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Items[dict[str, Any]] | None = Field(default=None, json_schema_extra={"items": openapi_rules.TOOL_CALL})
    function_call: dict[str, Any] | None = _optional(
        "A function call; older form of `tool_calls`.", openapi_rules.FUNCTION_CALL
    )
    refusal: str | None = None


class Prediction(Body):
    """The expected reply: tokens that agree are verified instead of generated one by one."""

    type: Literal["content"]
    content: str | Items[ContentPart] = Field(json_schema_extra={"minItems": 1})


class ResponseFormat(Body):
    """The form of the reply; only `text` is served."""

    type: Literal["text", "json_object", "json_schema"] = Field(json_schema_extra={"enum": ["text"]})


_CONSTRAINTS: Final = (
    *("grammar", "ebnf", "regex", "json_schema", "response_schema", "structural_tag"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "logits_processors"),
)
"""Other servers' fields that constrain the output. As ignored fields they would give unconstrained text."""


class GenerationBody(GeneratingBody):
    """The fields of both generating routes."""

    NO_OPS = MappingProxyType(
        {
            "user": "usage is not counted per user",
            "spaces_between_special_tokens": "decoding never adds spaces",
        }
    )
    REFUSED = MappingProxyType(
        {
            "structured_outputs": "structured outputs are not supported",
            "logprob_token_ids": "log-probabilities of chosen ids are not supported; use logprobs",
            "thinking_token_budget": "reasoning is not separated from text",
            "use_beam_search": "beam search is served by LLM.beam_search only",
            "truncation_side": "prompts are cut at the left only",
            **dict.fromkeys(_CONSTRAINTS, "constrained output is not supported"),
        }
    )

    n: JsonInteger | None = _sampling("n")
    temperature: float | None = _sampling("temperature")
    top_p: float | None = _sampling("top_p")
    top_k: JsonInteger | None = _sampling("top_k")
    min_p: float | None = _sampling("min_p")
    seed: JsonInteger | None = _sampling("seed")
    stop: str | Items[str] | None = _sampling("stop")
    stop_token_ids: Items[TokenId] | None = _sampling("stop_token_ids")
    bad_words: Items[str] | None = _sampling("bad_words")
    include_stop_str_in_output: bool | None = _sampling("include_stop_str_in_output")
    ignore_eos: bool | None = _sampling("ignore_eos")
    max_tokens: JsonInteger | None = _sampling("max_tokens")
    min_tokens: JsonInteger | None = _sampling("min_tokens")
    prompt_logprobs: JsonInteger | None = _optional(_HELP["prompt_logprobs"], openapi_rules.top_tokens(ALL_TOKENS))
    presence_penalty: float | None = _sampling("presence_penalty")
    frequency_penalty: float | None = _sampling("frequency_penalty")
    repetition_penalty: float | None = _sampling("repetition_penalty")
    logit_bias: dict[str, Any] | None = _sampling("logit_bias")
    allowed_token_ids: Items[TokenId] | None = _sampling("allowed_token_ids")
    skip_special_tokens: bool | None = _sampling("skip_special_tokens")
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    echo: bool | None = Field(
        default=None, description="Begin the reply with the prompt (chat: the message continued)."
    )
    priority: JsonInteger | None = Field(default=None, description="Smaller runs first; needs --policy priority.")
    cache_salt: str | None = _optional(
        "Requests share cached prefixes only under the same salt; not empty.", openapi_rules.NOT_EMPTY
    )
    truncate_prompt_tokens: JsonInteger | None = _KEPT
    add_special_tokens: bool | None = Field(default=None, description="Add special tokens around a text.")
    return_token_ids: bool | None = Field(default=None, description="Send the token ids of prompt and choices.")
    return_tokens_as_token_ids: bool | None = Field(
        default=None, description="Name tokens of log-probabilities as token_id:N."
    )
    user: Any = _NO_EFFECT
    spaces_between_special_tokens: Any = _NO_EFFECT


_TOOLS: Final = "tools are not supported"
_TOOL_LIST: Final[Any] = Field(default=None, description="Descriptions of tools for the template, as in a chat.")
_DOCUMENTS: Final = "documents are not passed to the template"


class Templated(Body):
    """The options of a conversation's template."""

    add_generation_prompt: bool | None = Field(default=None, description="Begin the assistant's message.")
    continue_final_message: bool | None = Field(default=None, description="Continue the last message.")
    chat_template: str | None = Field(default=None, description="Replaces the model's template.")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Variables for the template.")

    def reads(self, client: ModelClient, name: str) -> bool:
        """Return whether the template of this request reads a variable."""
        model_sources = () if client.chat_template is None else client.chat_template.sources.values()
        sources = model_sources if self.chat_template is None else (self.chat_template,)
        return any(re.search(rf"\b{name}\b", source) for source in sources)

    def effort_variables(self, client: ModelClient) -> dict[str, Any]:  # noqa: ARG002 - for bodies with that field
        """Return the variables for `reasoning_effort` that the template reads and the client does not set itself."""
        return {}

    def unread_fields(self, client: ModelClient) -> list[str]:
        return ["tools"] if getattr(self, "tools", None) and not self.reads(client, "tools") else []


class TemplateBody(Templated):
    """A conversation and the options of its template."""

    messages: Items[Message] = Field(min_length=1)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="For templates that read reasoning_effort or enable_thinking (false for none)."
    )
    add_special_tokens: bool | None = Field(default=None, description="Add special tokens around the rendered text.")

    def effort_variables(self, client: ModelClient) -> dict[str, Any]:
        effort, own = self.reasoning_effort, self.chat_template_kwargs or {}
        if effort is None:
            return {}
        variables = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        return {name: value for name, value in variables.items() if name not in own and self.reads(client, name)}

    def unread_fields(self, client: ModelClient) -> list[str]:
        unread = self.reasoning_effort is not None and not self.effort_variables(client)
        return [*(["reasoning_effort"] if unread else ()), *super().unread_fields(client)]


class ChatRequest(GenerationBody, TemplateBody):
    """The body of /v1/chat/completions."""

    model_config = _rules(openapi_rules.CHAT)
    NO_OPS = MappingProxyType(
        {
            **GenerationBody.NO_OPS,
            "metadata": "requests are not stored",
            "safety_identifier": "usage is not counted per user",
            "prompt_cache_key": "all requests share one cache",
            "prompt_cache_retention": "all requests share one cache",
            "service_tier": "there is one tier",
            "store": "requests are not stored",
            "verbosity": "models have no such option",
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
            "documents": _DOCUMENTS,
            "audio": "only text is served",
            "web_search_options": "web search is not supported",
            "moderation": "moderation is not supported",
        }
    )

    logprobs: bool | None = Field(default=None, description="Send the log-probabilities of the tokens.")
    top_logprobs: JsonInteger | None = _optional(
        f"Top tokens per position, 0 to {MAX_TOP_LOGPROBS}; needs logprobs.",
        openapi_rules.top_tokens(0, MAX_TOP_LOGPROBS),
    )
    max_tokens: JsonInteger | None = _optional(
        "Limit of generated tokens (default: the rest of the context).", openapi_rules.between(1)
    )
    max_completion_tokens: JsonInteger | None = _optional(
        "As max_tokens; must equal it if both are given.", openapi_rules.between(1)
    )
    prediction: Prediction | None = Field(
        default=None, description="The expected reply. It changes the speed, never the reply."
    )
    modalities: Items[Literal["text", "audio"]] | None = _optional(
        "Only text.", {"minItems": 1, "maxItems": 1, "items": {"const": "text"}}
    )
    include_reasoning: bool | None = _optional(
        "False is refused, because reasoning is part of the text.", openapi_rules.not_this(False)
    )
    metadata: Any = _NO_EFFECT
    safety_identifier: Any = _NO_EFFECT
    prompt_cache_key: Any = _NO_EFFECT
    prompt_cache_retention: Any = _NO_EFFECT
    service_tier: Any = _NO_EFFECT
    store: Any = _NO_EFFECT
    verbosity: Any = _NO_EFFECT


class CompletionRequest(GenerationBody):
    """The body of /v1/completions."""

    model_config = _rules(openapi_rules.COMPLETION)

    prompt: str | Items[str] | Items[TokenId] | Items[Items[TokenId]] = Field(
        description="A text or its token ids, or several of them.", json_schema_extra=openapi_rules.TEXTS
    )
    suffix: str | None = Field(
        default=None, description="Text after the completion, for models trained to fill in the middle."
    )
    best_of: JsonInteger | None = _optional(
        f"Choices to generate, of which the n likeliest per token are returned; up to {MAX_BEST_OF}; 0: n.",
        openapi_rules.between(0, MAX_BEST_OF),
    )
    logprobs: JsonInteger | None = _optional(
        f"Send log-probabilities of tokens and of this many top tokens, 0 to {MAX_LOGPROBS}.",
        openapi_rules.top_tokens(0, MAX_LOGPROBS),
    )


class EmbeddingRequest(Body):
    """The body of /v1/embeddings."""

    NO_OPS = MappingProxyType({"user": "usage is not counted per user"})

    model: str | None = MODEL
    input: str | Items[str] | Items[TokenId] | Items[Items[TokenId]] = Field(
        description="A text or its token ids, or several of them.", json_schema_extra=openapi_rules.TEXTS
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        default=None, description="base64: little-endian 32-bit floats."
    )
    dimensions: JsonInteger | None = _optional("Must be those of the model.", openapi_rules.between(1))
    truncate_prompt_tokens: JsonInteger | None = _KEPT
    truncate: bool | Literal["NONE", "START", "END"] | None = Field(
        default=None, description="Cut inputs to the context: START drops their start, END and true their end."
    )
    user: Any = _NO_EFFECT


class RenderRequest(TemplateBody):
    """The body of /v1/chat/completions/render."""

    model_config = _rules(openapi_rules.RENDER)
    REFUSED = MappingProxyType({"documents": _DOCUMENTS})

    model: str | None = MODEL
    tools: Items[dict[str, Any]] | None = _TOOL_LIST


class TokenizeRequest(Templated):
    """The body of /tokenize, in vLLM's form (`prompt` or `messages`) or llama.cpp's (`content`)."""

    model_config = _rules(openapi_rules.TOKENIZE)
    REFUSED = MappingProxyType({"documents": _DOCUMENTS})

    model: str | None = MODEL
    prompt: str | None = None
    messages: Items[Message] | None = Field(default=None, min_length=1)
    content: str | None = None
    add_special_tokens: bool | None = Field(
        default=None, description="Add special tokens (default: true for a prompt)."
    )
    add_special: bool | None = Field(default=None, description="As add_special_tokens, for content (default: false).")
    parse_special: bool | None = _optional(
        "False is refused, because the tokenizer always parses them.", openapi_rules.not_this(False)
    )
    return_token_strs: bool | None = Field(default=None, description="Send the vocabulary's spelling of each token.")
    with_pieces: bool | None = Field(default=None, description="Send each token with its text.")
    tools: Items[dict[str, Any]] | None = _TOOL_LIST


class DetokenizeRequest(Body):
    """The body of /detokenize; the reply has the text under both names, `prompt` and `content`."""

    model: str | None = MODEL
    tokens: Items[TokenId] = Field(json_schema_extra={"items": dict(TOKEN_SCHEMA)})
