"""The bodies of /v1/responses and input_tokens: fields, those without effect, and those that are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from ferrum.client.model_client import ModelClient
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
from ferrum.server.chat.sampling_fields import sampled
from ferrum.server.common.error_replies import invalid
from ferrum.server.common.field_rules import Integer, Items, Rule, one_of, rule
from ferrum.server.common.json_bodies import MODEL, Body, GeneratingBody, optional
from ferrum.server.common.served_model import read_variables, template_reads
from ferrum.server.responses.history import IMAGE_KIND, OUTPUTS, History, OfferedTools, waiting_tools

ENCRYPTED: Final = "reasoning.encrypted_content"
LOGPROBS: Final = "message.output_text.logprobs"

# The forms of items, tools and formats in the OpenAPI document; they are checked where they are read

REFERENCE: Final = "item_reference"
_CALL_ID: Final[Form] = {"type": ["string", "null"]}
_CALL: Final[Mapping[str, Form]] = {"call_id": _CALL_ID, "id": _CALL_ID}


def _others(*kinds: str) -> Form:
    """Return the form of objects of any other type."""
    return form({"type": {"type": "string", "not": {"enum": list(kinds)}}}, "type")


def _list(*items: Form) -> Form:
    return {"type": "array", "items": either(*items)}


_CONTENT: Final = either(
    TEXT,
    _list(
        of_kind(("input_text", "output_text", "text"), {"text": TEXT}, "text"),
        of_kind("refusal", {"refusal": TEXT}, "refusal"),
        of_kind(IMAGE_KIND, {"image_url": TEXT}, "image_url"),
    ),
)
_KNOWN: Final = (
    of_kind("function", FUNCTION, "name"),
    of_kind("custom", custom(of_kind("grammar", GRAMMAR, *GRAMMAR)), "name"),
)
_SPACE: Final = {**NAMED, "tools": _list(*_KNOWN, _others("function", "custom"))}
_TOOL: Final = either(*_KNOWN, of_kind("namespace", _SPACE, *_SPACE), _others("function", "custom", "namespace"))
_MESSAGE: Final[Mapping[str, Form]] = {
    "type": {"enum": ["message", None]},
    "role": {"enum": ["system", "developer", "user", "assistant"]},
    "content": _CONTENT,
}
_KINDS: Final = ("message", "function_call", "custom_tool_call", *OUTPUTS, "tool_search_output", "additional_tools")
INPUT: Final = either(
    NULL,
    TEXT,
    _list(
        form(_MESSAGE, "role", "content"),
        of_kind("function_call", {"name": TEXT}, "name"),
        of_kind("custom_tool_call", {"name": TEXT, "input": TEXT}, "name", "input"),
        of_kind(OUTPUTS, _CALL),
        of_kind("tool_search_output", {**_CALL, "tools": _list(_TOOL)}),
        of_kind("additional_tools", {"tools": _list(_TOOL)}),
        form({"type": {"enum": [REFERENCE, None]}, "id": TEXT}, "id"),
        _others(*_KINDS, REFERENCE),
    ),
)
_CHOSEN: Final = either(of_kind(("function", "custom", "namespace"), NAMED, "name"), of_kind("tool_search"))
_ALLOWED: Final[Mapping[str, Form]] = {
    "mode": {"enum": ["auto", "required"]},
    "tools": {**_list(_CHOSEN), "minItems": 1},
}
TOOL_CHOICE: Final = either(
    {"enum": ["none", "auto", "required", None]}, _CHOSEN, of_kind("allowed_tools", _ALLOWED, *_ALLOWED)
)
FORMAT: Final = either(NULL, of_kind(("text", "json_object")), of_kind("json_schema", {"schema": SCHEMA}, "schema"))


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

    FOR_TEMPLATE = frozenset({"tools", "reasoning", "input"})
    REFUSED = MappingProxyType({"conversation": "conversations are not stored; send previous_response_id"})

    input: str | Items[dict[str, Any]] | None = Field(
        default=None, description="A text of the user, or the items of the conversation.", json_schema_extra=INPUT
    )
    previous_response_id: str | None = optional("A stored response; its input and output precede `input`.")
    instructions: str | None = optional("The system message; system and developer messages at the begin follow it.")
    tools: Items[dict[str, Any]] | None = Field(
        default=None,
        description="Functions, custom tools, namespaces of them, and a search of the client; others are left out.",
        json_schema_extra=tool_list(_TOOL),
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

    def has_images(self) -> bool:
        lists = [item.get(name) for item in self.items if isinstance(item, Mapping) for name in ("content", "output")]
        parts = [part for each in lists if isinstance(each, list) for part in each]
        return any(isinstance(part, Mapping) and part.get("type") == IMAGE_KIND for part in parts)

    def conversation(self, *, before: Sequence[Any] = (), sees: bool = True) -> tuple[History, OfferedTools]:
        """Return the finished messages, and the tools.

        Args:
            before: items of the stored response that is continued.
            sees: the model reads images.

        Raises:
            RequestError, ApiError: an item or a tool cannot be served, by its path.
        """
        tools = OfferedTools()
        tools.add(self.tools or [], "tools")
        history = History(tools, sees=sees)
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
        if self.has_images() and not client.reads_images:
            unread += self.conversation(sees=False)[0].result_images
        return unread

    def check_fields(self, *, strict: bool, path: tuple[str | int, ...] = ()) -> list[str]:
        ignored = super().check_fields(strict=strict, path=path)
        history, tools = self.conversation(sees=False)  # `unread_fields` names images of results
        dropped = [f"{place}.{kind}" for place, kind in tools.dropped]
        return [*dropped, *waiting_tools(self.tools or []), *history.left_out, *ignored]


class InputTokensRequest(PromptBody):
    """The body of /v1/responses/input_tokens."""

    NO_OPS = MappingProxyType({"personality": "models have no such option"})

    model: str | None = MODEL


@sampled({"max_tokens": "max_output_tokens"})
class ResponsesRequest(PromptBody, GeneratingBody):
    """The body of /v1/responses."""

    LONG = (*GeneratingBody.LONG, "tools", "text")
    READ = True
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

    def check_fields(self, *, strict: bool, path: tuple[str | int, ...] = ()) -> list[str]:
        ignored = super().check_fields(strict=strict, path=path)
        return [*ignored, *unknown_includes(self.include or (), "include")]


def unknown_includes(include: Sequence[str], where: str) -> list[str]:
    """Return the paths of what cannot be included. Raises RequestError for log-probabilities."""
    if LOGPROBS in include:
        raise invalid(where, f"{LOGPROBS}: {ResponsesRequest.REFUSED['top_logprobs']}")
    return [f"{where}[{place}]" for place, each in enumerate(include) if each != ENCRYPTED]
