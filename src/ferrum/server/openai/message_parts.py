"""The parts of an assistant's message as the fields of chunks and of whole messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ferrum.core.output_format import ToolKind
from ferrum.core.types import Request
from ferrum.formats.output_parts import Part, PartKind, message_of, new_id
from ferrum.server.openai.chat_replies import CustomCall, FunctionCall, ToolCall


class MessageParts:
    """Writes the parts of one chat's choices.

    Args:
        request: of the chat.
        reply_id: ids of calls are made from it, unless the model writes them.
        reasoning: send it.
        older: send a call as `function_call`.
    """

    def __init__(self, request: Request, reply_id: str, *, reasoning: bool, older: bool) -> None:
        tools = () if request.reading is None else request.reading.tools
        self._custom = {tool.name for tool in tools if tool.kind is ToolKind.CUSTOM}
        self._reply = reply_id
        self._reasoning = reasoning
        self._older = older
        self._calls: dict[int, list[str]] = {}
        self._called: set[int] = set()

    def called(self, index: int) -> bool:
        """Return whether a choice has called a tool, by a call that was not cut."""
        return index in self._called

    def deltas(self, index: int, parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
        """Yield the fields of a chunk's delta for each part of a choice."""
        for part in parts:
            if part.kind is PartKind.CONTENT:
                yield {"content": part.text}
            elif part.kind is PartKind.REASONING and self._reasoning:
                yield {"reasoning": part.text, "reasoning_content": part.text}
            elif part.kind is PartKind.CALL:
                names = self._calls.setdefault(index, [])
                names.append(part.text)
                yield self._call(index, part.text, "", call_id=part.id or new_id(self._reply, index, len(names) - 1))
            elif part.kind is PartKind.ARGUMENTS:
                yield self._call(index, self._calls[index][-1], part.text)
            elif part.kind is PartKind.END:
                self._called.add(index)

    def message(self, index: int, parts: Sequence[Part], prefix: str) -> dict[str, Any]:
        """Return the fields of the whole message of a choice.

        Args:
            index: of the choice.
            parts: all of its parts.
            prefix: text before its content.
        """
        whole = message_of(parts)
        content = None if whole.content is None and not prefix else prefix + (whole.content or "")
        fields: dict[str, Any] = {"content": content}
        if whole.reasoning is not None and self._reasoning:
            fields |= {"reasoning": whole.reasoning, "reasoning_content": whole.reasoning}
        if whole.calls:
            self._called |= {index} if any(each.complete for each in whole.calls) else set()
            if self._older:
                first = whole.calls[0]
                fields["function_call"] = FunctionCall(name=first.name, arguments=first.arguments)
            else:
                fields["tool_calls"] = [
                    ToolCall(id=each.id or new_id(self._reply, index, place), **self._named(each.name, each.arguments))
                    for place, each in enumerate(whole.calls)
                ]
        return fields

    def _call(self, index: int, name: str, arguments: str, *, call_id: str = "") -> dict[str, Any]:
        """Return the delta of the newest call of a choice; one with an id begins it."""
        place = len(self._calls[index]) - 1
        if self._older:
            named = {"name": name} if call_id else {}
            return {"function_call": FunctionCall(**named, arguments=arguments)} if not place else {}
        begin: dict[str, Any] = {"id": call_id} if call_id else {}
        return {"tool_calls": [ToolCall(index=place, **begin, **self._named(name, arguments, begins=bool(call_id)))]}

    def _named(self, name: str, arguments: str, *, begins: bool = True) -> dict[str, Any]:
        kind = "custom" if name in self._custom else "function"
        head: dict[str, Any] = {"type": kind} if begins else {}
        named = {"name": name} if begins else {}
        if kind == "custom":
            return {**head, "custom": CustomCall(**named, input=arguments)}
        return {**head, "function": FunctionCall(**named, arguments=arguments)}
