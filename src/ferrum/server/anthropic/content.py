"""The parts of an output as blocks: their events, and the whole blocks as a fold of these events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ferrum.formats.output_parts import Part, PartKind, new_id
from ferrum.server.anthropic.events import (
    BlockDelta,
    BlockStart,
    BlockStop,
    Content,
    PartDelta,
    TextContent,
    ThinkingContent,
    ToolUseContent,
)
from ferrum.server.anthropic.signatures import signature_of
from ferrum.server.common.argument_objects import arguments_of
from ferrum.server.common.json_bodies import Reply

ID_PREFIX: Final = "toolu_"

_FIELDS: Final = {
    PartKind.CONTENT: ("text_delta", "text"),
    PartKind.REASONING: ("thinking_delta", "thinking"),
    PartKind.ARGUMENTS: ("input_json_delta", "partial_json"),
}
"""Type and field of the delta for a text."""


class BlockWriter:
    """Writes the events of one message's blocks.

    Args:
        reply_id: ids of calls are made from it, unless the model writes them.
        shown: reasoning is sent as text; otherwise only within its signature.

    Attributes:
        num_calls: calls so far.
    """

    def __init__(self, reply_id: str, *, shown: bool) -> None:
        self.num_calls = 0
        self._reply_id = reply_id
        self._shown = shown
        self._index = -1
        self._open: PartKind | None = None
        self._hidden: list[str] = []

    def events(self, parts: Iterable[Part]) -> Iterator[Reply]:
        """Yield the events of new parts."""
        for part in parts:
            if part.kind is PartKind.END:
                yield from self.close()
            elif part.kind is PartKind.CALL:
                yield from self._begin(PartKind.ARGUMENTS, self._call(part))
            elif part.text:
                if self._open is not part.kind:
                    yield from self._begin(part.kind, _empty(part.kind))
                if part.kind is PartKind.REASONING and not self._shown:
                    self._hidden.append(part.text)
                else:
                    kind, field = _FIELDS[part.kind]
                    yield self._delta(kind, field, part.text)

    def close(self) -> Iterator[Reply]:
        """Yield the events that end the open block, if there is one."""
        if self._open is None:
            return
        if self._open is PartKind.REASONING:
            yield self._delta("signature_delta", "signature", signature_of("".join(self._hidden)))
            self._hidden.clear()
        self._open = None
        yield BlockStop(type="content_block_stop", index=self._index)

    def _begin(self, kind: PartKind, block: Content) -> Iterator[Reply]:
        yield from self.close()
        self._open = kind
        self._index += 1
        yield BlockStart(type="content_block_start", index=self._index, content_block=block)

    def _call(self, part: Part) -> ToolUseContent:
        made = part.id or ID_PREFIX + new_id(self._reply_id, 0, self.num_calls)
        self.num_calls += 1
        return ToolUseContent(type="tool_use", id=made, name=part.text, input={})

    def _delta(self, kind: Any, field: str, text: str) -> BlockDelta:
        return BlockDelta(type="content_block_delta", index=self._index, delta=PartDelta(type=kind, **{field: text}))


def _empty(kind: PartKind) -> Content:
    if kind is PartKind.REASONING:
        return ThinkingContent(type="thinking", thinking="", signature="")
    return TextContent(type="text", text="")


def folded(events: Sequence[Reply]) -> list[Content]:
    """Return the whole blocks of events."""
    blocks: list[Content] = []
    texts: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, BlockStart):
            blocks.append(event.content_block)
            texts = {}
        elif isinstance(event, BlockDelta):
            for name in event.delta.model_fields_set - {"type"}:
                texts.setdefault(name, []).append(getattr(event.delta, name))
        elif isinstance(event, BlockStop):
            blocks[-1] = _whole(blocks[-1], {name: "".join(each) for name, each in texts.items()})
    return blocks


def _whole(block: Content, texts: dict[str, str]) -> Content:
    if isinstance(block, ToolUseContent):
        return block.model_copy(update={"input": arguments_of(texts.get("partial_json", ""))})
    return block.model_copy(update=texts)
