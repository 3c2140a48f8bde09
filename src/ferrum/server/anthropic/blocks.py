"""The messages of a conversation and the blocks of their content, as clients send them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field

from ferrum.server.common.field_rules import Items
from ferrum.server.common.json_bodies import Body

ONE_CACHE: Final = "prefixes are cached without it"


class Block(Body):
    """A part of a message's content."""

    NO_OPS = MappingProxyType({"cache_control": ONE_CACHE, "citations": "replies have none", "caller": "not used"})


class TextBlock(Block):
    """Text."""

    type: Literal["text"]
    text: str


class ImageBlock(Block):
    """An image, which only results of tools may have; a fixed text replaces it."""

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
    TextBlock | TextDocument | SearchResultBlock | ToolResultBlock,
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
