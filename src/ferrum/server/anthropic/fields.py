"""The bodies of /v1/messages and /v1/messages/count_tokens, with fields without effect or refused."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import Field

from ferrum.client.model_client import ModelClient
from ferrum.core.params import MAX_STOP_LENGTH, MAX_STOP_STRINGS
from ferrum.grammar.tools import MAX_TOOLS, NAME
from ferrum.server.chat.sampling_fields import sampled
from ferrum.server.common.field_rules import Integer, Items, Rule, absent, given, isnt, one_of, rule
from ferrum.server.common.json_bodies import MODEL, Body, GeneratingBody, optional
from ferrum.server.common.served_model import read_variables, template_reads

ONE_CACHE: Final = "prefixes are cached without it"
_ELSEWHERE: Final = "the server runs nothing besides the model"


# Messages and the blocks of their content


class Block(Body):
    """A part of a message's content."""

    NO_OPS = MappingProxyType({"cache_control": ONE_CACHE, "citations": "replies have none", "caller": "not used"})


class TextBlock(Block):
    """Text."""

    type: Literal["text"]
    text: str


class ImageBlock(Block):
    """An image in base64. In a result of a tool a fixed text replaces it if the model does not read images."""

    type: Literal["image"]
    source: dict[str, Any]


class TextSource(Body):
    """The text of a document."""

    type: Literal["text"]
    data: str
    media_type: str | None = None


class TextDocument(Block):
    """A document of plain text."""

    type: Literal["document"]
    source: TextSource
    title: str | None = None
    context: str | None = None


class AnyDocument(Block):
    """A document in a result of a tool; a fixed text replaces it unless its source is text."""

    type: Literal["document"]
    source: dict[str, Any]
    title: str | None = None
    context: str | None = None


class SearchResultBlock(Block):
    """A found text with its source."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Items[TextBlock]


class ToolReferenceBlock(Block):
    """A tool that a search has found."""

    type: Literal["tool_reference"]
    tool_name: str


class ThinkingBlock(Block):
    """Reasoning of an earlier reply; the signature is not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block):
    """Encrypted reasoning of another server, which is left out."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Block):
    """A call of a tool in an earlier reply."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


ResultBlock: TypeAlias = Annotated[
    TextBlock | ImageBlock | AnyDocument | SearchResultBlock | ToolReferenceBlock,
    Field(discriminator="type"),
]


class ToolResultBlock(Block):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Items[ResultBlock] | None = None
    is_error: bool | None = None


UserBlock: TypeAlias = Annotated[
    TextBlock | ImageBlock | TextDocument | SearchResultBlock | ToolResultBlock,
    Field(discriminator="type"),
]
AssistantBlock: TypeAlias = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock,
    Field(discriminator="type"),
]


class UserMessage(Body):
    """What the user says, after results of tools."""

    role: Literal["user"]
    content: str | Items[UserBlock]


class AssistantMessage(Body):
    """An earlier reply; the last message: the begin of the reply to generate."""

    role: Literal["assistant"]
    content: str | Items[AssistantBlock]


class SystemMessage(Body):
    """Instructions in the middle of a conversation."""

    role: Literal["system"]
    content: str | Items[TextBlock]


Message: TypeAlias = Annotated[UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")]


# Bodies


class ToolParam(Body):
    """A tool of the client, or one that Anthropic's servers run, which is left out."""

    RULES: ClassVar[Sequence[Rule]] = (
        rule("input_schema", "required for a tool of the client", given("input_schema"), given("type")),
        rule("input_schema", "required for a tool of the client", given("input_schema"), isnt("type", "custom")),
    )
    NO_OPS = MappingProxyType(
        {
            "cache_control": ONE_CACHE,
            "defer_loading": "every tool is in the prompt",
            "eager_input_streaming": "arguments are always streamed as they are generated",
            "input_examples": "templates have no place for them",
            "allowed_callers": _ELSEWHERE,
        }
    )

    type: str | None = optional("custom (default), or a type of a tool that is left out.")
    name: str = Field(pattern=f"^{NAME}$")
    description: str | None = None
    input_schema: dict[str, Any] | None = optional("JSON Schema of the arguments.")
    strict: bool | None = optional("Enforce the schema; else any JSON object.")

    @property
    def is_served(self) -> bool:
        """Whether the client runs the tool, whose arguments the model writes."""
        return self.type in (None, "custom")

    def check_fields(self, *, strict: bool, path: tuple[str | int, ...] = ()) -> list[str]:
        return super().check_fields(strict=strict, path=path) if self.is_served else []


class ToolChoice(Body):
    """Whether the model may or must call tools."""

    RULES: ClassVar[Sequence[Rule]] = (rule("name", "required with type tool", isnt("type", "tool"), given("name")),)

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = optional("End the reply after one call.")


class Thinking(Body):
    """Whether the model reasons before it answers."""

    RULES: ClassVar[Sequence[Rule]] = (
        rule("budget_tokens", "required with type enabled", isnt("type", "enabled"), given("budget_tokens")),
        rule("budget_tokens", "requires type enabled", one_of("type", "enabled"), absent("budget_tokens")),
    )

    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    budget_tokens: Annotated[int, Integer(1)] | None = optional("Largest number of reasoning tokens.")
    display: Literal["summarized", "omitted"] | None = optional("omitted: the reasoning is only in the signature.")


class OutputFormat(Body):
    """The form of the reply's text."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """Effort and form of the reply."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = optional("For templates that read it.")
    format: OutputFormat | None = None


class ThreadCreate(Body):
    """Hold the conversation under the reply's id."""

    type: Literal["create"]


class ThreadContinue(Body):
    """Continue a held conversation."""

    type: Literal["continue"]
    previous_message_id: str = Field(description="Id of the thread's last reply.")


class CountRequest(Body):
    """The body of /v1/messages/count_tokens: what the prompt depends on."""

    FOR_TEMPLATE = frozenset({"tools", "thinking", "output_config"})
    NO_OPS = MappingProxyType(
        {
            "cache_control": ONE_CACHE,
            "context_management": "clients shorten their conversations",
            "mcp_servers": _ELSEWHERE,
        }
    )
    REFUSED = MappingProxyType({"output_format": "use output_config.format", "container": _ELSEWHERE})

    model: str | None = MODEL
    messages: Items[Message] = Field(min_length=1)
    system: str | Items[TextBlock] | None = optional("Instructions before the conversation.")
    tools: Items[ToolParam] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    thread: Annotated[ThreadCreate | ThreadContinue, Field(discriminator="type")] | None = optional(
        "Hold the conversation, or continue a held one: `messages` are then the new ones."
    )
    thinking: Thinking | None = optional("Default: disabled, where the template can.")
    output_config: OutputConfig | None = None

    @property
    def thinks(self) -> bool:
        """Whether reasoning is asked for."""
        return self.thinking is not None and self.thinking.type != "disabled"

    def has_images(self) -> bool:
        lists = [message.content for message in self.messages if isinstance(message.content, list)]
        blocks = [block for blocks in lists for block in blocks]
        results = [block.content for block in blocks if isinstance(block, ToolResultBlock)]
        inner = [block for blocks in results if isinstance(blocks, list) for block in blocks]
        return any(isinstance(block, ImageBlock) for block in (*blocks, *inner))

    def variables(self, client: ModelClient) -> dict[str, Any]:
        """Return the variables for the template, those that it reads."""
        effort = None if self.output_config is None else self.output_config.effort
        variables: dict[str, Any] = {"enable_thinking": self.thinks}
        return read_variables(client, variables | ({} if effort is None else {"reasoning_effort": effort}))

    def unread_fields(self, client: ModelClient) -> list[str]:
        """Return fields that this model cannot follow, and tools that are left out."""
        found = None if client.chat_template is None else client.output_format().format
        reasons = found is not None and found.reasoning is not None
        unread = []
        if self.thinking is not None and self.thinks != reasons and not template_reads(client, "enable_thinking"):
            unread.append("thinking")
        effort = None if self.output_config is None else self.output_config.effort
        if effort is not None and not template_reads(client, "reasoning_effort"):
            unread.append("output_config.effort")
        dropped = [(place, each.type) for place, each in enumerate(self.tools or ()) if not each.is_served]
        return [*unread, *(f"tools[{place}].{kind}" for place, kind in dropped)]


class Diagnostics(Body):
    """Whether the reply says why it used no longer prefix from the cache."""

    previous_message_id: str | None = optional("Id of the message whose prompt is compared with this one.")


@sampled({"max_tokens": "max_tokens", "stop": "stop_sequences"})
class MessagesRequest(CountRequest, GeneratingBody):
    """The body of /v1/messages."""

    LONG = (*GeneratingBody.LONG, "tools", "output_config")
    READ = True
    NO_OPS = MappingProxyType(
        {
            **CountRequest.NO_OPS,
            "inference_geo": "there is one place",
            "metadata": "requests are not stored",
            "safeguards": _ELSEWHERE,
            "service_tier": "there is one tier",
            "speed": "there is one speed",
            "user_profile_id": "requests are not stored",
            "workspace_id": "requests are not stored",
        }
    )
    REFUSED = MappingProxyType(
        {**CountRequest.REFUSED, "compaction": "summaries are not made; ask for one in a message"}
    )

    max_tokens: Annotated[int, Integer(1)] = Field(description="Limit of generated tokens.")
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    diagnostics: Diagnostics | None = optional(
        "Compare the prompt with that of an earlier message (with --explain-prefixes)."
    )
    stop_sequences: Items[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]] | None = Field(
        default=None, max_length=MAX_STOP_STRINGS, description="Texts that end the reply."
    )
