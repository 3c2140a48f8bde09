"""The bodies that clients send: the fields of all routes, their types, and fields without effect or refused.

Bounds and rules are those of `field_rules`; what depends on the model or the caller is in `openai.checks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field

from ferrum.client.model_client import ModelClient
from ferrum.core.param_values import TOKEN_SCHEMA
from ferrum.core.params import ALL_TOKENS, SamplingParams, value_schema
from ferrum.server.common import field_rules
from ferrum.server.common.field_rules import (
    TOP_TOKENS,
    Integer,
    Items,
    JsonInteger,
    NonEmpty,
    Rule,
    TokenId,
    absent,
    isnt,
    one_of,
    rule,
)
from ferrum.server.common.json_bodies import MODEL, Body, GeneratingBody, optional
from ferrum.server.common.lora_scales import LoraScale
from ferrum.server.openai.constraints import ALIASES, CONSTRAINTS, RESPONSE_FORMAT, STRUCTURED_OUTPUTS
from ferrum.server.openai.conversation import NO_DOCUMENTS, ContentPart, TemplateBody
from ferrum.server.openai.tool_fields import FUNCTION_CALL, FUNCTIONS, TOOL_CHOICE, TOOLS

NOT_STORED: Final = "chats are not stored; send all messages, or use /v1/responses"

MAX_TOP_LOGPROBS: Final = 20
MAX_LOGPROBS: Final = 5
MAX_BEST_OF: Final = 20

_HELP: Final = {each.name: each.metadata["help"] for each in fields(SamplingParams)}


def _sampling(name: str) -> Any:
    """Return the field of a sampling parameter; null is its default."""
    return Field(default=None, description=_HELP[name], json_schema_extra=value_schema(name))


_KEPT: Final[Any] = optional("Keep this many tokens at the end of the prompt; -1: as many as fit.")
_KEEPS_SOME: Final = rule(
    "truncate_prompt_tokens", "must be at least 1, or -1, not 0", isnt("truncate_prompt_tokens", 0)
)
Positive: TypeAlias = Annotated[int, Integer(1)]
Limit: TypeAlias = Annotated[int, Integer(1, advice="leave it out to fill the context")]
Kept: TypeAlias = Annotated[int, Integer(-1)]
TopTokens: TypeAlias = Annotated[int, Integer(0, MAX_TOP_LOGPROBS, TOP_TOKENS)]
FewTopTokens: TypeAlias = Annotated[int, Integer(0, MAX_LOGPROBS, TOP_TOKENS)]


class StreamOptions(Body):
    """Options for the usage in a stream."""

    NO_OPS = MappingProxyType({"include_obfuscation": "chunks are never padded"})

    include_usage: bool | None = optional("Send one more chunk with the usage at the end.")
    continuous_usage_stats: bool | None = optional(
        "Send the usage so far in every chunk, unless include_usage is false."
    )


class Prediction(Body):
    """The expected reply: tokens that agree are verified instead of generated one by one."""

    type: Literal["content"]
    content: str | Items[ContentPart] = Field(json_schema_extra={"minItems": 1})


def _alias(name: str) -> Any:
    """Return the field of another server that means the same as one of `structured_outputs`."""
    return optional(f"As structured_outputs.{ALIASES[name]}.")


class GenerationBody(GeneratingBody):
    """The fields of both generating routes."""

    RULES: ClassVar[Sequence[Rule]] = (
        rule("stream_options", "requires stream = true", absent("stream_options"), one_of("stream", True)),
        rule("prompt_logprobs", "requires stream = false", absent("prompt_logprobs"), isnt("stream", True)),
        _KEEPS_SOME,
    )
    NO_OPS = MappingProxyType(
        {
            "user": "usage is not counted per user",
            "spaces_between_special_tokens": "decoding never adds spaces",
        }
    )
    REFUSED = MappingProxyType(
        {
            "logprob_token_ids": "log-probabilities of chosen ids are served by LLM.generate only; use logprobs",
            "use_beam_search": "beam search is served by LLM.beam_search only",
            "truncation_side": "prompts are cut at the left only",
            "logits_processors": "programs of clients are not run",
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
    prompt_logprobs: Annotated[int, Integer(ALL_TOKENS, format=TOP_TOKENS)] | None = optional(_HELP["prompt_logprobs"])
    presence_penalty: float | None = _sampling("presence_penalty")
    frequency_penalty: float | None = _sampling("frequency_penalty")
    repetition_penalty: float | None = _sampling("repetition_penalty")
    no_repeat_ngram_size: JsonInteger | None = _sampling("no_repeat_ngram_size")
    dry_multiplier: float | None = _sampling("dry_multiplier")
    dry_base: float | None = _sampling("dry_base")
    dry_allowed_length: JsonInteger | None = _sampling("dry_allowed_length")
    dry_penalty_last_n: JsonInteger | None = _sampling("dry_penalty_last_n")
    dry_sequence_breakers: Items[str] | None = _sampling("dry_sequence_breakers")
    logit_bias: dict[str, Any] | None = _sampling("logit_bias")
    allowed_token_ids: Items[TokenId] | None = _sampling("allowed_token_ids")
    skip_special_tokens: bool | None = _sampling("skip_special_tokens")
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = Field(
        default=None, description="The form of the output.", json_schema_extra=RESPONSE_FORMAT
    )
    structured_outputs: dict[str, Any] | None = Field(
        default=None,
        description="A constraint on the output: one of json, json_object, regex, choice, grammar, structural_tag.",
        json_schema_extra=STRUCTURED_OUTPUTS,
    )
    guided_json: dict[str, Any] | str | bool | None = _alias("guided_json")
    guided_regex: str | None = _alias("guided_regex")
    guided_choice: Items[str] | None = _alias("guided_choice")
    guided_grammar: str | None = _alias("guided_grammar")
    json_schema: dict[str, Any] | str | bool | None = _alias("json_schema")
    response_schema: dict[str, Any] | str | bool | None = _alias("response_schema")
    regex: str | None = _alias("regex")
    grammar: str | None = _alias("grammar")
    ebnf: str | None = _alias("ebnf")
    structural_tag: dict[str, Any] | str | None = _alias("structural_tag")
    echo: bool | None = optional("Begin the reply with the prompt (chat: the message continued).")
    priority: JsonInteger | None = optional("Smaller runs first; needs --policy priority.")
    cache_salt: NonEmpty | None = optional("Requests share cached prefixes only under the same salt; not empty.")
    lora: Items[LoraScale] | None = optional("Adapters by their ids in /lora-adapters; those not named have scale 0.")
    truncate_prompt_tokens: Kept | None = _KEPT
    add_special_tokens: bool | None = optional("Add special tokens around a text.")
    return_token_ids: bool | None = optional("Send the token ids of prompt and choices.")
    return_tokens_as_token_ids: bool | None = optional("Name tokens of log-probabilities as token_id:N.")

    def takes_long(self, client: ModelClient) -> bool:  # noqa: ARG002 - signature of a body
        return bool(self.dry_multiplier) or any(getattr(self, name) is not None for name in CONSTRAINTS)


class ChatRequest(GenerationBody, TemplateBody):
    """The body of /v1/chat/completions."""

    RULES: ClassVar[Sequence[Rule]] = (
        *GenerationBody.RULES,
        *TemplateBody.RULES,
        rule("top_logprobs", "requires logprobs = true", one_of("top_logprobs", 0, None), one_of("logprobs", True)),
    )
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
            "documents": NO_DOCUMENTS,
            **dict.fromkeys(("previous_response_id", "conversation"), NOT_STORED),
            "audio": "only text is served",
            "modalities": "only text is served",
            "web_search_options": "web search is not supported",
            "moderation": "moderation is not supported",
        }
    )

    logprobs: bool | None = optional("Send the log-probabilities of the tokens.")
    top_logprobs: TopTokens | None = optional(f"Top tokens per position, 0 to {MAX_TOP_LOGPROBS}; needs logprobs.")
    max_tokens: Limit | None = optional("Limit of generated tokens (default: the rest of the context).")
    max_completion_tokens: Limit | None = optional("As max_tokens; must equal it if both are given.")
    prediction: Prediction | None = optional("The expected reply. It changes the speed, never the reply.")
    tools: Items[dict[str, Any]] | None = Field(
        default=None, description="Tools that the model may call.", json_schema_extra=TOOLS
    )
    tool_choice: str | dict[str, Any] | None = Field(
        default=None,
        description="none, auto (default), required, the tool to call, or those allowed.",
        json_schema_extra=TOOL_CHOICE,
    )
    parallel_tool_calls: bool | None = optional("Allow several calls in one reply (default: true).")
    functions: Items[dict[str, Any]] | None = Field(
        default=None, description="Older form of `tools`.", json_schema_extra=FUNCTIONS
    )
    function_call: str | dict[str, Any] | None = Field(
        default=None, description="Older form of `tool_choice`.", json_schema_extra=FUNCTION_CALL
    )
    thinking_token_budget: Annotated[int, Integer(0)] | None = optional("Largest number of reasoning tokens.")
    include_reasoning: bool | None = optional("Send the reasoning (default: true).")

    def takes_long(self, client: ModelClient) -> bool:
        return bool(self.tools or self.functions) or not client.knows_format or super().takes_long(client)


class CompletionRequest(GenerationBody):
    """The body of /v1/completions."""

    RULES: ClassVar[Sequence[Rule]] = (
        *GenerationBody.RULES,
        *(
            rule("suffix", f"cannot be combined with {other}", absent("suffix"), one_of(other, None, *harmless))
            for other, harmless in (("echo", (False,)), ("truncate_prompt_tokens", ()))
        ),
    )

    prompt: str | Items[str] | Items[TokenId] | Items[Items[TokenId]] = Field(
        description="A text or its token ids, or several of them.", json_schema_extra=field_rules.TEXTS
    )
    suffix: str | None = optional("Text after the completion, for models trained to fill in the middle.")
    best_of: Annotated[int, Integer(0, MAX_BEST_OF)] | None = optional(
        f"Choices to generate, of which the n likeliest per token are returned; up to {MAX_BEST_OF}; 0: n."
    )
    logprobs: FewTopTokens | None = optional(
        f"Send log-probabilities of tokens and of this many top tokens, 0 to {MAX_LOGPROBS}."
    )


class EmbeddingRequest(Body):
    """The body of /v1/embeddings."""

    RULES: ClassVar[Sequence[Rule]] = (_KEEPS_SOME,)
    NO_OPS = MappingProxyType({"user": "usage is not counted per user"})

    model: str | None = MODEL
    input: str | Items[str] | Items[TokenId] | Items[Items[TokenId]] = Field(
        description="A text or its token ids, or several of them.", json_schema_extra=field_rules.TEXTS
    )
    encoding_format: Literal["float", "base64"] | None = optional("base64: little-endian 32-bit floats.")
    dimensions: Positive | None = optional("Must be those of the model.")
    truncate_prompt_tokens: Kept | None = _KEPT
    truncate: bool | Literal["NONE", "START", "END"] | None = optional(
        "Cut inputs to the context: START drops their start, END and true their end."
    )


class DetokenizeRequest(Body):
    """The body of /detokenize; the reply has the text under both names, `prompt` and `content`."""

    model: str | None = MODEL
    tokens: Items[TokenId] = Field(json_schema_extra={"items": dict(TOKEN_SCHEMA)})
