"""`MessageBuilder`: the events of a message, and the whole message as their fold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ferrum.client.request_output import Delta
from ferrum.core.types import Request
from ferrum.formats.output_parts import Part, PartKind
from ferrum.server.anthropic.bodies import MessagesRequest
from ferrum.server.anthropic.checks import CheckedRequest, check_message
from ferrum.server.anthropic.content import BlockWriter, folded
from ferrum.server.anthropic.diagnostics import diagnostics
from ferrum.server.anthropic.events import (
    Content,
    MessageDelta,
    MessageReply,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputDetails,
    Ping,
    Stop,
    StopReason,
)
from ferrum.server.anthropic.message_threads import HeldThread, completed
from ferrum.server.common.generation import finish_of
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.key_limits import Caller
from ferrum.server.common.reply_builder import ReplyHeader, cache_writes
from ferrum.server.common.reply_store import ReplyStore, Turn
from ferrum.server.common.served_model import ServedModel


class UsageCounter:
    """Tokens of a message so far; those of reasoning are known at its end.

    Args:
        prompt: tokens of the prompt.
        cache_page: see `ServedModel`.
    """

    def __init__(self, prompt: int, cache_page: int | None = None) -> None:
        self.prompt = prompt
        self._cache_page = cache_page
        self.completion = self.cached = self.reasoning = 0

    def count(self, delta: Delta) -> None:
        """Add the tokens of a delta."""
        self.completion += len(delta.token_ids)
        self.cached = self.cached or delta.cached_tokens
        if delta.usage is not None:
            self.cached = delta.usage.cached_tokens
            self.reasoning += delta.usage.reasoning_tokens

    def reply(self) -> MessageUsage:
        """Return the tokens as clients see them: `input_tokens` are neither from the cache nor put into it."""
        written = cache_writes(self._cache_page, self.prompt, self.cached)
        return MessageUsage(
            input_tokens=self.prompt - self.cached - written,
            output_tokens=self.completion,
            cache_read_input_tokens=self.cached,
            cache_creation_input_tokens=written,
            output_tokens_details=OutputDetails(thinking_tokens=self.reasoning),
        )


class MessageBuilder:
    """Builds the reply to one request of this API.

    Args:
        thread: stores the message at its end, before a client gets the last of it; None: it is not stored.

    Attributes:
        replaced: see `CheckedRequest`.
    """

    uniform = False

    def __init__(
        self, header: ReplyHeader, body: MessagesRequest, checked: CheckedRequest, thread: HeldThread | None = None
    ) -> None:
        self.id = header.id
        self.requests: tuple[Request, ...] = (checked.request,)
        self.usage = UsageCounter(len(checked.request.prompt), checked.cache_page)
        self.replaced = checked.replaced
        self._notes = checked.notes
        self._asked = body.diagnostics
        self._model = header.model
        self._max_tokens = body.max_tokens
        omitted = body.thinking is not None and body.thinking.display == "omitted"
        self._writer = BlockWriter(header.id, shown=not omitted)
        self._begun = False
        self._last: Delta | None = None
        self._thread = thread
        self._events: list[Reply] = []  # of a thread

    def headers(self, first: Delta | None) -> Mapping[str, str]:
        return self._notes.headers(first)

    def add(self, place: int, delta: Delta) -> None:  # noqa: ARG002 - there is one request
        """Count a delta. Raises the FerrumError that ended the message."""
        finish_of(delta)
        self.usage.count(delta)

    def chunks(self, place: int, delta: Delta) -> Iterator[Reply]:  # noqa: ARG002 - there is one request
        """Yield the events of a delta; before the first ones, the message without content, and a ping."""
        if not self._begun:
            self._begun = True
            yield MessageStart(type="message_start", message=self._message([], None))
            yield Ping(type="ping")
        yield from self._blocks(delta)

    def _blocks(self, delta: Delta) -> Sequence[Reply]:
        """Return the events of the blocks for a delta."""
        parts = delta.parts
        if parts is None:
            parts = (Part(PartKind.CONTENT, delta.text),) if delta.text else ()
        events = [*self._writer.events(parts)]
        if delta.finish_reason is not None:
            self._last = delta
            events += self._writer.close()
        if self._thread is not None:
            self._events += events
        return events

    def end_chunks(self) -> Iterator[Reply]:
        """Yield the end of the message."""
        self._keep(self._events)
        yield MessageDelta(type="message_delta", delta=self._stop(), usage=self.usage.reply())
        yield MessageStop(type="message_stop")

    def reply(self, choices: Mapping[tuple[int, int], Delta]) -> MessageReply:
        events = [event for delta in choices.values() for event in self._blocks(delta)]
        self._keep(events)
        return self._message(folded(events), self._stop())

    def _keep(self, events: Sequence[Reply]) -> None:
        if self._thread is not None:
            self._thread.keep(self._message(folded(events), self._stop()))

    def _message(self, content: list[Content], stop: Stop | None) -> MessageReply:
        about: dict[str, Any] = {}
        if self._asked is not None:
            about["diagnostics"] = diagnostics(self._asked.previous_message_id, self._notes.explanation)
        return MessageReply(
            id=self.id,
            type="message",
            role="assistant",
            model=self._model,
            content=content,
            stop_reason=None if stop is None else stop.stop_reason,
            stop_sequence=None if stop is None else stop.stop_sequence,
            usage=self.usage.reply(),
            **about,
        )

    def _stop(self) -> Stop:
        assert self._last is not None, "a stream that ends has had its last delta"
        found = self._last.stop_reason
        if isinstance(found, str):
            return Stop(stop_reason="stop_sequence", stop_sequence=found)
        return Stop(stop_reason=self._stop_reason(self._last), stop_sequence=None)

    def _stop_reason(self, last: Delta) -> StopReason:
        if finish_of(last) == "length":
            return "max_tokens" if self.usage.completion >= self._max_tokens else "model_context_window_exceeded"
        return "tool_use" if self._writer.num_calls else "end_turn"


def message_builder(
    store: ReplyStore,
    held: Turn | None,
    model: ServedModel,
    body: MessagesRequest,
    caller: Caller,
    header: ReplyHeader,
) -> MessageBuilder:
    """Check a body and return the builder of its reply. Raises as `check_message`.

    Args:
        store: gets the reply, if it is of a thread.
        held: the turn that the body continues.
    """
    whole, earlier = completed(body, held)
    checked = check_message(model, whole, caller, header.id, earlier)
    thread = None if body.thread is None else HeldThread(store, caller.tenant, body, held)
    return MessageBuilder(header, body, checked, thread)
