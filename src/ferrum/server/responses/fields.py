"""The bodies of /v1/responses and input_tokens: fields, those without effect, and those that are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from ferrum.client.model_client import ModelClient
from ferrum.grammar.tools import MAX_TOOLS
from ferrum.server.chat.sampling_fields import sampled
from ferrum.server.common.error_replies import invalid
from ferrum.server.common.field_rules import Integer, Items, Rule, one_of, rule
from ferrum.server.common.json_bodies import MODEL, Body, GeneratingBody, optional
from ferrum.server.common.served_model import read_variables, template_reads
from ferrum.server.responses.history import History, OfferedTools, waiting_tools

ENCRYPTED: Final = "reasoning.encrypted_content"
LOGPROBS: Final = "message.output_text.logprobs"

# The forms of items, tools and formats in the OpenAPI document; they are checked where they are read

_TEXT: Final[dict[str, Any]] = {"type": "string"}
_CALL_ID: Final[dict[str, Any]] = {"type": ["string", "null"]}
_NAME: Final[dict[str, Any]] = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}
_ANY_TEXT: Final[dict[str, Any]] = {"type": ["string", "null"]}


def _object(kinds: str | Sequence[str], properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    """Return the form of objects of a type, or of one of several types."""
    kind = {"const": kinds} if isinstance(kinds, str) else {"enum": list(kinds)}
    return {"type": "object", "properties": {"type": kind, **properties}, "required": ["type", *required]}


_PARTS: Final[dict[str, Any]] = {
    "type": "array",
    "items": {
        "anyOf": [
            _object(("input_text", "output_text", "text"), {"text": _TEXT}, "text"),
            _object("refusal", {"refusal": _TEXT}, "refusal"),
        ]
    },
}
_CONTENT: Final[dict[str, Any]] = {"anyOf": [_TEXT, _PARTS]}
_RESULTS: Final = (
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
)
REFERENCE: Final = "item_reference"


def _others(*kinds: str) -> dict[str, Any]:
    """Return the form of objects of any other type."""
    kind = {"type": "string", "not": {"enum": list(kinds)}}
    return {"type": "object", "properties": {"type": kind}, "required": ["type"]}


_FUNCTION: Final[dict[str, Any]] = _object(
    "function",
    {
        "name": _NAME,
        "description": _ANY_TEXT,
        "parameters": {"type": ["object", "null"]},
        "strict": {"type": ["boolean", "null"]},
    },
    "name",
)
_CUSTOM: Final[dict[str, Any]] = _object(
    "custom",
    {
        "name": _NAME,
        "description": _ANY_TEXT,
        "format": {
            "anyOf": [
                _object("text", {}),
                _object(
                    "grammar",
                    {"syntax": {"enum": ["lark", "regex"]}, "definition": _TEXT},
                    "syntax",
                    "definition",
                ),
                {"type": "null"},
            ]
        },
    },
    "name",
)
_KNOWN: Final = (_FUNCTION, _CUSTOM)
_ALL_TOOLS: Final[dict[str, Any]] = {
    "anyOf": [
        *_KNOWN,
        _object(
            "namespace",
            {
                "name": _NAME,
                "tools": {"type": "array", "items": {"anyOf": [*_KNOWN, _others("function", "custom")]}},
            },
            "name",
            "tools",
        ),
        _others("function", "custom", "namespace"),
    ]
}
TOOLS: Final[dict[str, Any]] = {"maxItems": MAX_TOOLS, "items": _ALL_TOOLS}
_TOOL_LIST: Final[dict[str, Any]] = {"tools": {"type": "array", "items": _ALL_TOOLS}}
_ITEMS: Final[Sequence[dict[str, Any]]] = (
    {
        "type": "object",
        "properties": {
            "type": {"enum": ["message", None]},
            "role": {"enum": ["system", "developer", "user", "assistant"]},
            "content": _CONTENT,
        },
        "required": ["role", "content"],
    },
    _object("function_call", {"name": _TEXT}, "name"),
    _object("custom_tool_call", {"name": _TEXT, "input": _TEXT}, "name", "input"),
    _object(_RESULTS, {"call_id": _CALL_ID, "id": _CALL_ID}),
    _object("tool_search_output", {"call_id": _CALL_ID, "id": _CALL_ID, **_TOOL_LIST}),
    _object("additional_tools", _TOOL_LIST),
    {"type": "object", "properties": {"type": {"enum": [REFERENCE, None]}, "id": _TEXT}, "required": ["id"]},
    _others(
        *("message", "function_call", "custom_tool_call", *_RESULTS),
        *("tool_search_output", "additional_tools", REFERENCE),
    ),
)
INPUT: Final[dict[str, Any]] = {"anyOf": [{"type": "null"}, _TEXT, {"type": "array", "items": {"anyOf": list(_ITEMS)}}]}
_CHOSEN: Final[dict[str, Any]] = {
    "anyOf": [_object(("function", "custom", "namespace"), {"name": _NAME}, "name"), _object("tool_search", {})]
}
TOOL_CHOICE: Final[dict[str, Any]] = {
    "anyOf": [
        {"enum": ["none", "auto", "required", None]},
        _CHOSEN,
        _object(
            "allowed_tools",
            {"mode": {"enum": ["auto", "required"]}, "tools": {"type": "array", "items": _CHOSEN, "minItems": 1}},
            "mode",
            "tools",
        ),
    ]
}
FORMAT: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "null"},
        _object(("text", "json_object"), {}),
        _object("json_schema", {"schema": {"type": ["object", "boolean"]}}, "schema"),
    ]
}


# Bodies


class ReasoningOptions(Body):
    """Options of reasoning."""

    NO_OPS = MappingProxyType(
        {
            "context": "reasoning of all turns in the input is given to the template, which decides",
            "mode": "there is one",
        }
    )

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = optional(
        "For templates that read reasoning_effort or enable_thinking (false for none)."
    )
    summary: Literal["auto", "concise", "detailed"] | None = optional(
        "Send the reasoning as a summary too; it is not shortened."
    )
    generate_summary: Literal["auto", "concise", "detailed"] | None = optional("Older name of `summary`.")

    def variables(self, client: ModelClient) -> dict[str, Any]:
        """Return the variables of the template for `effort`."""
        if self.effort is None:
            return {}
        wanted = {"reasoning_effort": self.effort, "enable_thinking": self.effort != "none"}
        return read_variables(client, wanted)


class TextOptions(Body):
    """Options of the text."""

    NO_OPS = MappingProxyType({"verbosity": "models have no such option"})

    format: dict[str, Any] | None = Field(default=None, description="The form of the text.", json_schema_extra=FORMAT)

    def constraint(self) -> tuple[Mapping[str, Any] | None, str]:
        """Return what the text must satisfy, None if it is free, and the name of its field. Raises RequestError."""
        match self.format:
            case None | {"type": "text"}:
                return None, "text.format"
            case {"type": "json_object"}:
                return {"json_object": True}, "text.format"
            case {"type": "json_schema", "schema": dict() | bool() as schema}:
                return {"json": schema}, "text.format.schema"
            case {"type": "json_schema"}:
                raise invalid("text.format.schema", "must be a JSON Schema")
        kinds = "'text', 'json_object' or 'json_schema'"
        raise invalid("text.format.type", f"must be {kinds}, not {self.format.get('type')!r}")


class PromptCacheOptions(Body):
    """Options of the prefix cache."""

    NO_OPS = MappingProxyType(
        {
            "mode": "prefixes are always cached",
            "ttl": "prefixes are kept as long as there is room",
            "prewarm": "prefixes are cached when a response is generated",
        }
    )

    comparison_response_id: str | None = optional(
        "Id of the response whose prompt is compared with this one (with --explain-prefixes)."
    )


class StreamOptions(Body):
    """Options of a stream."""

    NO_OPS = MappingProxyType({"include_obfuscation": "events are never padded"})


class PromptBody(Body):
    """The fields that decide what the model reads."""

    FOR_TEMPLATE = frozenset({"tools", "reasoning"})
    REFUSED = MappingProxyType({"conversation": "conversations are not stored; send previous_response_id"})

    input: str | Items[dict[str, Any]] | None = Field(
        default=None, description="A text of the user, or the items of the conversation.", json_schema_extra=INPUT
    )
    previous_response_id: str | None = optional("A stored response; its input and output precede `input`.")
    instructions: str | None = optional("The system message; system and developer messages at the begin follow it.")
    tools: Items[dict[str, Any]] | None = Field(
        default=None,
        description="Functions, custom tools, namespaces of them, and a search of the client; others are left out.",
        json_schema_extra=TOOLS,
    )
    tool_choice: str | dict[str, Any] | None = Field(
        default=None, description="Whether, or which, a tool must be called.", json_schema_extra=TOOL_CHOICE
    )
    parallel_tool_calls: bool | None = optional("Allow several calls (default: true).")
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = optional("Both refuse an input that is longer than the context.")

    @property
    def items(self) -> Sequence[Any]:
        """The items of the input."""
        return [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input or []

    def conversation(self, *, before: Sequence[Any] = ()) -> tuple[History, OfferedTools]:
        """Return the finished messages, and the tools.

        Args:
            before: items of the stored response that is continued.

        Raises:
            RequestError, ApiError: an item or a tool cannot be served, by its path.
        """
        tools = OfferedTools()
        tools.add(self.tools or [], "tools")
        history = History(tools)
        history.add_instructions(self.instructions)
        for item in before:
            history.add(item, "previous_response_id")
        history.left_out.clear()  # it was named when the response was generated
        for place, item in enumerate(self.items):
            history.add(item, f"input[{place}]")
        history.finish()
        return history, tools

    def unread_fields(self, client: ModelClient) -> list[str]:
        unread = []
        if self.reasoning is not None and self.reasoning.effort is not None and not self.reasoning.variables(client):
            unread.append("reasoning.effort")
        if self.tools and not template_reads(client, "tools"):
            unread.append("tools")
        return unread

    def check_fields(self, *, strict: bool, path: tuple[str | int, ...] = ()) -> list[str]:
        ignored = super().check_fields(strict=strict, path=path)
        history, tools = self.conversation()
        dropped = [f"{place}.{kind}" for place, kind in tools.dropped]
        return [*dropped, *waiting_tools(self.tools or []), *history.left_out, *ignored]


class InputTokensRequest(PromptBody):
    """The body of /v1/responses/input_tokens."""

    NO_OPS = MappingProxyType({"personality": "models have no such option"})

    model: str | None = MODEL


@sampled({"max_tokens": "max_output_tokens"})
class ResponsesRequest(PromptBody, GeneratingBody):
    """The body of /v1/responses."""

    NO_OPS = MappingProxyType(
        {
            "prompt_cache_key": "all requests share one cache",
            "prompt_cache_retention": "all requests share one cache",
            "client_metadata": "it is not read",
            "service_tier": "there is one tier",
            "safety_identifier": "usage is not counted per user",
            "user": "usage is not counted per user",
            "max_tool_calls": "it limits tools that the server runs, of which there are none",
            "context_management": "nothing is compacted",
        }
    )
    REFUSED = MappingProxyType(
        {
            **PromptBody.REFUSED,
            "prompt": "prompt templates are not stored; send instructions and input",
            "top_logprobs": "log-probabilities are served by /v1/chat/completions",
            "moderation": "moderation is not supported",
        }
    )
    RULES: ClassVar[Sequence[Rule]] = (
        rule(
            "background",
            "needs a stored response; leave store out",
            one_of("background", None, False),
            one_of("store", None, True),
        ),
    )

    include: Items[str] | None = optional(f"`{ENCRYPTED}`: reasoning in a form to send back.")
    max_output_tokens: Annotated[int, Integer(1, advice="leave it out to fill the context")] | None = optional(
        "Limit of generated tokens, reasoning included (default: the rest of the context)."
    )
    stream_options: StreamOptions | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    store: bool | None = optional("Keep the response, to be fetched and continued (default: true).")
    background: bool | None = optional("Reply at once, and generate while no client waits; fetch the response later.")
    metadata: dict[str, str] | None = optional("Is sent back.")

    def takes_long(self, client: ModelClient) -> bool:
        formed = self.text is not None and self.text.format is not None
        return bool(self.tools) or formed or not client.knows_format or super().takes_long(client)

    def check_fields(self, *, strict: bool, path: tuple[str | int, ...] = ()) -> list[str]:
        ignored = super().check_fields(strict=strict, path=path)
        return [*ignored, *unknown_includes(self.include or (), "include")]


def unknown_includes(include: Sequence[str], where: str) -> list[str]:
    """Return the paths of what cannot be included. Raises RequestError for log-probabilities."""
    if LOGPROBS in include:
        raise invalid(where, f"{LOGPROBS}: {ResponsesRequest.REFUSED['top_logprobs']}")
    return [f"{where}[{place}]" for place, each in enumerate(include) if each != ENCRYPTED]
