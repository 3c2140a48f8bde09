"""`Output`: the items of a response, built from the parts of the model's output, and the events on the way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from ferrum.core.values import readable_json
from ferrum.formats.output_parts import Part, PartKind, new_id
from ferrum.server.responses.history import sealed
from ferrum.server.responses.offered_tools import SEARCH, Source

Event: TypeAlias = tuple[str, dict[str, Any]]
"""Type and fields of an event."""
Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]

_TEXT: Final = {"type": "output_text", "annotations": [], "logprobs": []}
_DELTAS: Final = {"function": "response.function_call_arguments", "custom": "response.custom_tool_call_input"}
_FIELDS: Final = {"function": "arguments", "custom": "input"}


class Output:
    """The items of one response.

    Args:
        reply_id: ids of items and calls are made from it.
        sources: what the model's tools are for the client, by the model's name.
        summary: send the reasoning as a summary too.
        encrypted: send the reasoning as `encrypted_content` too.
    """

    def __init__(self, reply_id: str, sources: Mapping[str, Source], *, summary: bool, encrypted: bool) -> None:
        self._reply = reply_id
        self._sources = sources
        self._summary = summary
        self._encrypted = encrypted
        self._done: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._texts: list[str] = []
        self._source = Source("function", "")
        self._calls = 0

    def items(self) -> list[dict[str, Any]]:
        """Return all items; one that has not ended is incomplete."""
        return [*self._done, *([] if self._open is None else [self._item("incomplete")])]

    def add(self, parts: Iterable[Part]) -> Iterator[Event]:
        """Add parts, and yield their events without sequence numbers."""
        for part in parts:
            if part.kind is PartKind.CALL:
                yield from self.close("completed")
                yield from self._begin_call(part)
            elif part.kind is PartKind.END:
                yield from self.close("completed")
            elif part.text:
                kind = {PartKind.REASONING: "reasoning", PartKind.CONTENT: "message"}.get(part.kind)
                if kind is not None and (self._open is None or self._open["type"] != kind):
                    yield from self.close("completed")
                    yield from self._begin_text(kind)
                self._texts.append(part.text)
                yield from self._deltas(part.text)

    def close(self, status: Status) -> Iterator[Event]:
        """End the item that has not ended, if there is one."""
        if self._open is None:
            return
        item = self._item(status)
        yield from self._ends("".join(self._texts))
        yield "response.output_item.done", {"output_index": len(self._done), "item": item}
        self._done.append(item)
        self._open, self._texts = None, []

    def _begin_text(self, kind: str) -> Iterator[Event]:
        if kind == "message":
            self._open = {"id": self._id("msg"), "type": kind, "role": "assistant"}
        else:
            self._open = {"id": self._id("rs"), "type": kind}
        yield self._added()
        yield "response.content_part.added", {**self._at(), "content_index": 0, "part": self._part("")}
        if kind == "reasoning" and self._summary:
            part = {"type": "summary_text", "text": ""}
            yield "response.reasoning_summary_part.added", {**self._at(), "summary_index": 0, "part": part}

    def _begin_call(self, part: Part) -> Iterator[Event]:
        self._source = source = self._sources.get(part.text, Source("function", part.text))
        call_id = part.id or new_id(self._reply, 0, self._calls)
        self._calls += 1
        if source.kind == SEARCH:
            about = {"id": self._id("tsc"), "type": "tool_search_call", "execution": "client"}
            self._open = {**about, "call_id": call_id}
        else:
            prefix, kind = ("ctc", "custom_tool_call") if source.kind == "custom" else ("fc", "function_call")
            named = {"namespace": source.namespace} if source.namespace else {}
            self._open = {"id": self._id(prefix), "type": kind, "call_id": call_id, **named, "name": source.name}
        yield self._added()

    def _deltas(self, text: str) -> Iterator[Event]:
        """Yield the events of a new text of the open item."""
        assert self._open is not None
        kind, at = self._open["type"], self._at()
        if kind == "message":
            yield "response.output_text.delta", {**at, "content_index": 0, "delta": text, "logprobs": []}
        elif kind == "reasoning":
            yield "response.reasoning_text.delta", {**at, "content_index": 0, "delta": text}
            if self._summary:
                yield "response.reasoning_summary_text.delta", {**at, "summary_index": 0, "delta": text}
        elif self._source.kind in _DELTAS:
            yield f"{_DELTAS[self._source.kind]}.delta", {**at, "delta": text}

    def _ends(self, text: str) -> Iterator[Event]:
        """Yield the events before the end of the open item."""
        assert self._open is not None
        kind, at = self._open["type"], self._at()
        if kind == "message":
            yield "response.output_text.done", {**at, "content_index": 0, "text": text, "logprobs": []}
        elif kind == "reasoning":
            yield "response.reasoning_text.done", {**at, "content_index": 0, "text": text}
        elif self._source.kind in _DELTAS:
            field = _FIELDS[self._source.kind]
            named = {"name": self._source.name} if field == "arguments" else {}
            yield f"{_DELTAS[self._source.kind]}.done", {**at, **named, field: text}
        if kind in ("message", "reasoning"):
            yield "response.content_part.done", {**at, "content_index": 0, "part": self._part(text)}
        if kind == "reasoning" and self._summary:
            part = {"type": "summary_text", "text": text}
            yield "response.reasoning_summary_text.done", {**at, "summary_index": 0, "text": text}
            yield "response.reasoning_summary_part.done", {**at, "summary_index": 0, "part": part}

    def _item(self, status: Status) -> dict[str, Any]:
        """Return the open item with all of its text."""
        assert self._open is not None
        item, text = {**self._open, "status": status}, "".join(self._texts)
        if item["type"] == "message":
            return {**item, "content": [self._part(text)] if text else []}
        if item["type"] == "reasoning":
            summary = [{"type": "summary_text", "text": text}] if self._summary and text else []
            secret = {"encrypted_content": sealed(text)} if self._encrypted and text else {}
            return {**item, "summary": summary, "content": [self._part(text)] if text else [], **secret}
        if item["type"] == "tool_search_call":
            return {**item, "arguments": _value(text)}
        return {**item, _FIELDS[self._source.kind]: text}

    def _part(self, text: str) -> dict[str, Any]:
        """Return the part of content of the open item."""
        assert self._open is not None
        return {**_TEXT, "text": text} if self._open["type"] == "message" else {"type": "reasoning_text", "text": text}

    def _added(self) -> Event:
        return "response.output_item.added", {"output_index": len(self._done), "item": self._item("in_progress")}

    def _at(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._done)}

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._reply}_{len(self._done)}"


def _value(text: str) -> Any:
    """Return the value of JSON text; text that was cut off is its own value."""
    try:
        return json.loads(readable_json(text or "{}"))
    except (ValueError, RecursionError):
        return text
