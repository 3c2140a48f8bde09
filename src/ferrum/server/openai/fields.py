"""The bodies that clients send: their fields and types, and which fields are ignored or refused.

Bounds and rules are those of `field_rules`; what depends on the model or the caller is in `ask`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field

from ferrum.client.model_client import ModelClient
from ferrum.core.params import ALL_TOKENS
from ferrum.core.structured_outputs import client_forms
from ferrum.server.chat.forms import (
    FUNCTION,
    GRAMMAR,
    NAMED,
    NULL,
    SCHEMA,
    TEXT,
    Form,
    custom,
    either,
    form,
    of_kind,
    tool_list,
)
from ferrum.server.chat.sampling_fields import OTHERS, sampled
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
    given,
    isnt,
    one_of,
    rule,
)
from ferrum.server.common.json_bodies import Body, GeneratingBody, optional
from ferrum.server.common.served_model import LoraScale, template_reads
from ferrum.server.common.top_tokens import MAX_TOP_LOGPROBS, TopTokens

# Conversations

_LINK: Final = form({"url": TEXT, "detail": {"enum": ["auto", "low", "high", "original", None]}}, "url")
_PART: Final = either(
    *(of_kind(kind, {kind: TEXT}, kind) for kind in ("text", "refusal")),
    of_kind("image_url", {"image_url": either(_LINK, TEXT)}, "image_url"),
)
_ARGUMENTS: Final = either({"type": "object"}, {"type": "string", "contentMediaType": "application/json"}, NULL)
_FUNCTION_CALL: Final = form({"name": TEXT, "arguments": _ARGUMENTS}, "name")
_CALL_ID: Final[Form] = {"id": either(TEXT, NULL)}
_TOOL_CALL: Final = either(
    form({**_CALL_ID, "type": {"enum": ["function", None]}, "function": _FUNCTION_CALL}, "function"),
    of_kind("custom", {**_CALL_ID, "custom": form({"name": TEXT, "input": TEXT}, "name", "input")}, "custom"),
)
"""Parts and calls are checked in `text`, for all callers."""


class ImageUrl(Body):
    """An image as a data URL; nothing is fetched."""

    NO_OPS = MappingProxyType({"detail": "the model's own image processor decides on sizes"})

    url: str


class ContentPart(Body):
    """A part of a message: `text`, `image_url` or an assistant's `refusal`."""

    model_config = ConfigDict(json_schema_extra=_PART)

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None


class Message(Body):
    """One message of a conversation. Other fields are passed to the chat template."""

    RULES: ClassVar[Sequence[Rule]] = (
        rule(
            "content",
            "may be null only in an assistant message",
            *(given("content"), given("refusal"), one_of("role", "assistant")),
        ),
        rule("tool_call_id", "required in a tool message", isnt("role", "tool"), given("tool_call_id")),
        rule("name", "required in a function message", isnt("role", "function"), given("name")),
    )
    PASSES_ON = True

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | Items[ContentPart] | None = Field(default=None, json_schema_extra={"minItems": 1})
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Items[dict[str, Any]] | None = Field(default=None, json_schema_extra={"items": _TOOL_CALL})
    function_call: dict[str, Any] | None = Field(
        default=None, description="A function call; older form of `tool_calls`.", json_schema_extra=_FUNCTION_CALL
    )
    refusal: str | None = None


NO_DOCUMENTS: Final = "documents are not passed to the template"


class Templated(Body):
    """The options of a conversation's template."""

    RULES: ClassVar[Sequence[Rule]] = (
        rule(
            "continue_final_message",
            "cannot be combined with add_generation_prompt",
            *(isnt("add_generation_prompt", True), isnt("continue_final_message", True)),
        ),
    )
    FOR_TEMPLATE = frozenset({"tools", "reasoning_effort"})

    add_generation_prompt: bool | None = optional("Begin the assistant's message.")
    continue_final_message: bool | None = optional("Continue the last message.")
    chat_template: str | None = optional("Replaces the model's template.")
    chat_template_kwargs: dict[str, Any] | None = optional("Variables for the template.")

    def has_images(self) -> bool:
        return any(
            part.image_url is not None
            for message in getattr(self, "messages", None) or ()
            if isinstance(message.content, list)
            for part in message.content
        )

    def reads(self, client: ModelClient, name: str) -> bool:
        """Return whether the template of this request reads a variable."""
        return template_reads(client, name, self.chat_template)

    def unread_fields(self, client: ModelClient) -> list[str]:
        return ["tools"] if getattr(self, "tools", None) and not self.reads(client, "tools") else []


class TemplateBody(Templated):
    """A conversation and the options of its template."""

    messages: Items[Message] = Field(min_length=1)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = optional(
        "For templates that read reasoning_effort or enable_thinking (false for none)."
    )
    add_special_tokens: bool | None = optional("Add special tokens around the rendered text.")

    def effort_variables(self, client: ModelClient) -> dict[str, Any]:
        """Return the variables for `reasoning_effort` that the template reads and the client does not set itself."""
        effort, own = self.reasoning_effort, self.chat_template_kwargs or {}
        if effort is None:
            return {}
        variables = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        return {name: value for name, value in variables.items() if name not in own and self.reads(client, name)}

    def unread_fields(self, client: ModelClient) -> list[str]:
        unread = self.reasoning_effort is not None and not self.effort_variables(client)
        return [*(["reasoning_effort"] if unread else ()), *super().unread_fields(client)]


# Tools


def _typed(kind: str, properties: Mapping[str, Form], *required: str) -> Form:
    return of_kind(kind, {kind: form(properties, *required)}, kind)


_CUSTOM: Final = custom(_typed("grammar", GRAMMAR, *GRAMMAR))
_ALLOWED: Final[Mapping[str, Form]] = {"mode": {"enum": ["auto", "required"]}, "tools": {"type": "array"}}
TOOLS: Final = tool_list(either(_typed("function", FUNCTION, "name"), _typed("custom", _CUSTOM, "name")))
TOOL_CHOICE: Final = either(
    {"enum": ["none", "auto", "required", None]},
    _typed("function", NAMED, "name"),
    _typed("custom", NAMED, "name"),
    _typed("allowed_tools", _ALLOWED, *_ALLOWED),
)
FUNCTIONS: Final = tool_list(form(FUNCTION, "name"))
FUNCTION_CALL: Final = either({"enum": ["none", "auto", None]}, form(NAMED, "name"))
"""The forms of the fields in the document."""


# Constraints on the output

ALIASES: Final[Mapping[str, str]] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "response_schema": "json",
    "regex": "regex",
    "grammar": "grammar",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}
"""Fields of other servers (older vLLM, llama.cpp, SGLang, Vertex) by the name in `structured_outputs`."""

CONSTRAINTS: Final = ("response_format", "structured_outputs", *ALIASES)
"""All fields that constrain the output."""

RESPONSE_FORMAT: Final = either(
    NULL,
    of_kind(("text", "structural_tag")),
    of_kind("json_object", {"schema": SCHEMA}),
    of_kind("json_schema", {"json_schema": form({"name": TEXT, "schema": SCHEMA}, "schema")}, "json_schema"),
)
"""The form of `response_format` in the document."""

STRUCTURED_OUTPUTS: Final = either(NULL, *client_forms())
"""The form of `structured_outputs` in the document."""


# Generating routes

NOT_STORED: Final = "chats are not stored; send all messages, or use /v1/responses"

MAX_LOGPROBS: Final = 5
MAX_BEST_OF: Final = 20

KEPT: Final[Any] = optional("Keep this many tokens at the end of the prompt; -1: as many as fit.")
KEEPS_SOME: Final = rule(
    "truncate_prompt_tokens", "must be at least 1, or -1, not 0", isnt("truncate_prompt_tokens", 0)
)
Positive: TypeAlias = Annotated[int, Integer(1)]
Limit: TypeAlias = Annotated[int, Integer(1, advice="leave it out to fill the context")]
Kept: TypeAlias = Annotated[int, Integer(-1)]
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


@sampled(more=OTHERS)
class GenerationBody(GeneratingBody):
    """The fields of both generating routes."""

    LONG = (*GeneratingBody.LONG, *CONSTRAINTS)
    RULES: ClassVar[Sequence[Rule]] = (
        rule("stream_options", "requires stream = true", absent("stream_options"), one_of("stream", True)),
        rule("prompt_logprobs", "requires stream = false", absent("prompt_logprobs"), isnt("stream", True)),
        KEEPS_SOME,
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

    prompt_logprobs: Annotated[int, Integer(ALL_TOKENS, format=TOP_TOKENS)] | None = optional(
        "Log-probabilities of the prompt's tokens, from the second on, with this many top tokens; -1: all."
    )
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
    truncate_prompt_tokens: Kept | None = KEPT
    add_special_tokens: bool | None = optional("Add special tokens around a text.")
    return_token_ids: bool | None = optional("Send the token ids of prompt and choices.")
    return_tokens_as_token_ids: bool | None = optional("Name tokens of log-probabilities as token_id:N.")


class ChatRequest(GenerationBody, TemplateBody):
    """The body of /v1/chat/completions."""

    LONG = (*GenerationBody.LONG, "tools", "functions")
    READ = True
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
