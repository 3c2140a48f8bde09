"""The replies of this API: events of a streamed message, the whole message, and the builder of both."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias
from urllib.parse import quote

from ferrum.client.diagnosis.prefix_explainer import Explanation, Miss
from ferrum.client.request_output import Delta
from ferrum.formats.output_parts import PartKind
from ferrum.server.anthropic.fields import MessagesRequest
from ferrum.server.chat.ask import Asked
from ferrum.server.chat.turn import Counts, Item, ReplyBuilder, ReplyHeader, Turn, arguments_of
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.json_routes import MAX_NAMED

REPLACED: Final = "x-ferrum-replaced"
"""Header that names what the prompt has in another form."""

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class OutputDetails(Reply):
    """Details of the generated tokens."""

    thinking_tokens: int


class MessageUsage(Reply):
    """Tokens of a request; `input_tokens` are those of the prompt that were not cached."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens_details: OutputDetails


class TextContent(Reply):
    """Text of a reply."""

    type: Literal["text"] = "text"
    text: str


class ThinkingContent(Reply):
    """Reasoning of a reply."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class ToolUseContent(Reply):
    """A call of a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


Content: TypeAlias = TextContent | ThinkingContent | ToolUseContent


class CacheMiss(Reply):
    """Why a prompt shares no longer prefix with an earlier one.

    Attributes:
        first_differing_token: its index in the prompt.
        place: path of what it stands in.
        cause: path of what changed.
    """

    type: Literal["system_changed", "tools_changed", "messages_changed", "previous_message_not_found", "unavailable"]
    cache_missed_input_tokens: int = 0
    first_differing_token: int = 0
    place: str | None = None
    cause: str | None = None


class Diagnostics(Reply):
    """The comparison with an earlier prompt."""

    cache_miss_reason: CacheMiss


class MessageReply(Reply):
    """The reply of /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Content]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    diagnostics: Diagnostics | None = None


class MessageStart(Reply):
    """The message before its content."""

    EVENT: ClassVar[str] = "message_start"
    type: Literal["message_start"]
    message: MessageReply


class Ping(Reply):
    """An event without content, as this API sends after the message's start and on an idle stream."""

    EVENT: ClassVar[str] = "ping"
    type: Literal["ping"] = "ping"


class BlockStart(Reply):
    """The begin of a block, which is empty."""

    EVENT: ClassVar[str] = "content_block_start"
    type: Literal["content_block_start"]
    index: int
    content_block: Content


class PartDelta(Reply):
    """New text of a block: the field named like the type without `_delta`, or `partial_json`."""

    type: Literal["text_delta", "thinking_delta", "signature_delta", "input_json_delta"]
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""


class BlockDelta(Reply):
    """New text of the open block."""

    EVENT: ClassVar[str] = "content_block_delta"
    type: Literal["content_block_delta"]
    index: int
    delta: PartDelta


class BlockStop(Reply):
    """The end of the open block."""

    EVENT: ClassVar[str] = "content_block_stop"
    type: Literal["content_block_stop"]
    index: int


class Stop(Reply):
    """Why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Reply):
    """The end of the message, with all its tokens."""

    EVENT: ClassVar[str] = "message_delta"
    type: Literal["message_delta"]
    delta: Stop
    usage: MessageUsage


class MessageStop(Reply):
    """The last event."""

    EVENT: ClassVar[str] = "message_stop"
    type: Literal["message_stop"]


class TokenCount(Reply):
    """The reply of /v1/messages/count_tokens."""

    input_tokens: int


# The builder


class MessageBuilder(ReplyBuilder[Reply]):
    """Builds the reply to one request of this API.

    Args:
        replaced: paths of what the prompt has in another form.
        keep: stores the message at its end, before a client gets the last of it; None: it is not stored.
    """

    CALL_PREFIX = "toolu_"

    def __init__(
        self,
        header: ReplyHeader,
        body: MessagesRequest,
        asked: Asked,
        replaced: Sequence[str] = (),
        keep: Callable[[MessageReply], None] | None = None,
    ) -> None:
        super().__init__(header, asked)
        self._replaced = replaced
        self._diagnostics = body.diagnostics
        self._model = header.model
        self._max_tokens = body.max_tokens
        self._omitted = body.thinking is not None and body.thinking.display == "omitted"
        self._keep = keep

    def headers(self, first: Delta | None) -> Mapping[str, str]:
        return {**super().headers(first), **replaced_header(self._replaced)}

    def begun(self, item: Item) -> Iterator[Reply]:
        """Yield the begin of a block, which is empty."""
        block: Content = TextContent(type="text", text="")
        if item.kind is PartKind.REASONING:
            block = ThinkingContent(type="thinking", thinking="", signature="")
        elif item.kind is PartKind.CALL:
            block = ToolUseContent(type="tool_use", id=item.id, name=item.name, input={})
        yield BlockStart(type="content_block_start", index=item.place, content_block=block)

    def grown(self, item: Item, text: str) -> Iterator[Reply]:
        """Yield new text; hidden reasoning has none."""
        if item.kind is PartKind.CONTENT:
            yield _delta(item, PartDelta(type="text_delta", text=text))
        elif item.kind is PartKind.CALL:
            yield _delta(item, PartDelta(type="input_json_delta", partial_json=text))
        elif not self._omitted:
            yield _delta(item, PartDelta(type="thinking_delta", thinking=text))

    def ended(self, item: Item) -> Iterator[Reply]:
        """Yield the end of a block."""
        if item.kind is PartKind.REASONING:
            yield _delta(item, PartDelta(type="signature_delta", signature=self._signature(item)))
        yield BlockStop(type="content_block_stop", index=item.place)

    def _signature(self, item: Item) -> str:
        return signature_of(item.text if self._omitted else "")

    def content(self) -> list[Content]:
        """Return the whole blocks."""
        return [self._block(item) for turn in self.turns.values() for item in turn.items]

    def _block(self, item: Item) -> Content:
        if item.kind is PartKind.REASONING:
            shown = "" if self._omitted else item.text
            return ThinkingContent(type="thinking", thinking=shown, signature=self._signature(item))
        if item.kind is PartKind.CALL:
            return ToolUseContent(type="tool_use", id=item.id, name=item.name, input=arguments_of(item.text))
        return TextContent(type="text", text=item.text)

    def chunks(self, place: int, delta: Delta) -> Iterator[Reply]:
        """Yield the events of a delta; before the first ones, the message without content, and a ping."""
        if not self.turns:
            yield MessageStart(type="message_start", message=self._message([], None))
            yield Ping(type="ping")
        yield from self.pieces(place, delta)

    def end_chunks(self) -> Iterator[Reply]:
        """Yield the end of the message."""
        if self._keep is not None:
            self._keep(self._message(self.content(), self._stop()))
        yield MessageDelta(type="message_delta", delta=self._stop(), usage=usage_of(self.usage))
        yield MessageStop(type="message_stop")

    def whole(self) -> MessageReply:
        message = self._message(self.content(), self._stop())
        if self._keep is not None:
            self._keep(message)
        return message

    def _message(self, content: list[Content], stop: Stop | None) -> MessageReply:
        about: dict[str, Any] = {}
        if self._diagnostics is not None:
            about["diagnostics"] = diagnostics(self._diagnostics.previous_message_id, self.asked.explanation)
        return MessageReply(
            id=self.id,
            type="message",
            role="assistant",
            model=self._model,
            content=content,
            stop_reason=None if stop is None else stop.stop_reason,
            stop_sequence=None if stop is None else stop.stop_sequence,
            usage=usage_of(self.usage),
            **about,
        )

    def _stop(self) -> Stop:
        [turn] = self.turns.values()
        found = None if turn.last is None else turn.last.stop_reason
        if isinstance(found, str):
            return Stop(stop_reason="stop_sequence", stop_sequence=found)
        return Stop(stop_reason=self._stop_reason(turn), stop_sequence=None)

    def _stop_reason(self, turn: Turn) -> StopReason:
        if turn.finish == "length":
            return "max_tokens" if self.usage.completion >= self._max_tokens else "model_context_window_exceeded"
        return "tool_use" if turn.calls else "end_turn"


def _delta(item: Item, delta: PartDelta) -> BlockDelta:
    return BlockDelta(type="content_block_delta", index=item.place, delta=delta)


def usage_of(counts: Counts) -> MessageUsage:
    """Return the tokens as clients see them: `input_tokens` are neither from the cache nor put into it."""
    return MessageUsage(
        input_tokens=counts.prompt - counts.cached - counts.written,
        output_tokens=counts.completion,
        cache_read_input_tokens=counts.cached,
        cache_creation_input_tokens=counts.written,
        output_tokens_details=OutputDetails(thinking_tokens=counts.reasoning),
    )


def replaced_header(paths: Sequence[str]) -> dict[str, str]:
    """Return the header that names what was replaced; empty if nothing was."""
    shown = [quote(path, safe="[]") for path in paths[:MAX_NAMED]]
    return {REPLACED: ", ".join(shown)} if shown else {}


# Signatures of reasoning, and the comparison of prompts

_SIGNED: Final = "ferrum."
"""Nothing is signed: the reasoning is the model's text."""


def signature_of(hidden: str = "") -> str:
    """Return the signature of a block of reasoning; `hidden` is its text if the block has none."""
    return _SIGNED + b64encode(hidden.encode()).decode()


def hidden_in(signature: str | None) -> str:
    """Return the reasoning that a signature carries; empty if it carries none or is another server's."""
    if signature is None or not signature.startswith(_SIGNED):
        return ""
    try:
        return b64decode(signature.removeprefix(_SIGNED), validate=True).decode()
    except ValueError:
        return ""


def diagnostics(wanted: str | None, explanation: Explanation | None) -> Diagnostics | None:
    """Return the field of a message whose client asks for it; None if the prompts do not differ.

    Args:
        wanted: id of the message to compare with.
        explanation: None without `--explain-prefixes`: the reason is unavailable.
    """
    if wanted is None:
        return None
    if explanation is None:
        return Diagnostics(cache_miss_reason=CacheMiss(type="unavailable"))
    if not explanation.named:
        return Diagnostics(cache_miss_reason=CacheMiss(type="previous_message_not_found"))
    miss = explanation.miss
    if miss is None or miss.appended:
        return None
    kind = _kind(miss)
    where: dict[str, Any] = {"first_differing_token": explanation.common, "place": miss.place, "cause": miss.cause}
    if kind != "unavailable":
        where["cache_missed_input_tokens"] = explanation.missed
    return Diagnostics(cache_miss_reason=CacheMiss(type=kind, **where))


def _kind(miss: Miss) -> Literal["system_changed", "tools_changed", "messages_changed", "unavailable"]:
    """Return what changed. A change of `thinking` has no kind in this API."""
    if miss.change == "tool":
        return "tools_changed"
    if miss.change != "message":
        return "unavailable"
    return "system_changed" if miss.cause == "system" else "messages_changed"
