"""Bodies with a conversation: messages, the options of their template, and the routes that only render them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from ferrum.client.model_client import ModelClient
from ferrum.server.common.field_rules import Items, Rule, absent, given, isnt, one_of, rule
from ferrum.server.common.json_bodies import MODEL, Body, optional
from ferrum.server.common.template_variables import template_reads

_PART: Final[dict[str, Any]] = {
    "anyOf": [
        {"properties": {"type": {"const": kind}, kind: {"type": "string"}}, "required": ["type", kind]}
        for kind in ("text", "refusal")
    ]
}
_ARGUMENTS: Final = [{"type": "object"}, {"type": "string", "contentMediaType": "application/json"}, {"type": "null"}]
_FUNCTION_CALL: Final[dict[str, Any]] = {
    "properties": {"name": {"type": "string"}, "arguments": {"anyOf": _ARGUMENTS}},
    "required": ["name"],
}
_CALL_ID: Final = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_TEXT: Final = {"type": "string"}
_CUSTOM_CALL: Final = {"type": "object", "properties": {"name": _TEXT, "input": _TEXT}, "required": ["name", "input"]}
_TOOL_CALL: Final[dict[str, Any]] = {
    "anyOf": [
        {
            "properties": {
                "id": _CALL_ID,
                "type": {"enum": ["function", None]},
                "function": {"type": "object", **_FUNCTION_CALL},
            },
            "required": ["function"],
        },
        {
            "properties": {"id": _CALL_ID, "type": {"enum": ["custom"]}, "custom": _CUSTOM_CALL},
            "required": ["type", "custom"],
        },
    ]
}
"""Parts and calls are checked in `text`, for all callers."""


class ContentPart(Body):
    """A part of a message; only `text` and an assistant's `refusal` are served."""

    model_config = ConfigDict(json_schema_extra=_PART)

    type: str
    text: str | None = None
    refusal: str | None = None


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


_TOOL_LIST: Final[Any] = optional("Descriptions of tools for the template, as in a chat.")
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


class RenderRequest(TemplateBody):
    """The body of /v1/chat/completions/render."""

    REFUSED = MappingProxyType({"documents": NO_DOCUMENTS})

    model: str | None = MODEL
    tools: Items[dict[str, Any]] | None = _TOOL_LIST


_PARSE: Final = "the tokenizer always parses special tokens"
_FORMS: Final = ("prompt", "messages", "content")
_ONE_FORM: Final = "send exactly one of prompt, messages and content"
_FORM_OF: Final = {
    "add_special_tokens": ("prompt", "messages"),
    "add_special": ("content",),
    "add_generation_prompt": ("messages",),
    "continue_final_message": ("messages",),
    "chat_template": ("messages",),
    "chat_template_kwargs": ("messages",),
    "tools": ("messages",),
}
"""Fields of /tokenize that require one of these other fields."""


class TokenizeRequest(Templated):
    """The body of /tokenize, in vLLM's form (`prompt` or `messages`) or llama.cpp's (`content`)."""

    RULES: ClassVar[Sequence[Rule]] = (
        *Templated.RULES,
        rule("prompt", _ONE_FORM, *map(given, _FORMS)),
        *(rule("prompt", _ONE_FORM, absent(one), absent(other)) for one, other in combinations(_FORMS, 2)),
        *(
            rule(field, f"requires {' or '.join(forms)}", absent(field), *map(given, forms))
            for field, forms in _FORM_OF.items()
        ),
    )
    REFUSED = MappingProxyType({"documents": NO_DOCUMENTS, "parse_special": _PARSE})

    model: str | None = MODEL
    prompt: str | None = None
    messages: Items[Message] | None = Field(default=None, min_length=1)
    content: str | None = None
    add_special_tokens: bool | None = optional("Add special tokens (default: true for a prompt).")
    add_special: bool | None = optional("As add_special_tokens, for content (default: false).")
    return_token_strs: bool | None = optional("Send the vocabulary's spelling of each token.")
    with_pieces: bool | None = optional("Send each token with its text.")
    tools: Items[dict[str, Any]] | None = _TOOL_LIST
