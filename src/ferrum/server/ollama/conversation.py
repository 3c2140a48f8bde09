"""Ollama's messages in OpenAI's form, which templates are given.

Ollama's calls need no ids, and a result may name its tool only. Both get ids here: some templates require them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ferrum.formats.output_parts import new_id
from ferrum.server.ollama.bodies import ChatMessage


def openai_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return the messages in OpenAI's form. The same messages have the same ids: the next turn finds its prefix."""
    made: list[dict[str, Any]] = []
    pending: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        each: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            each["thinking"] = message.thinking
        if message.tool_calls:
            each["tool_calls"] = pending = list(_calls(message, place))
            pending = list(pending)
        if message.role == "tool":
            each |= _answered(message, pending)
        made.append(each)
    return made


def _calls(message: ChatMessage, place: int) -> Iterator[dict[str, Any]]:
    for number, call in enumerate(message.tool_calls or ()):
        function = {"name": call.function.name, "arguments": call.function.arguments or {}}
        yield {"id": call.id or new_id("history", place, number), "type": "function", "function": function}


def _answered(message: ChatMessage, pending: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields that say which call a result is of: the named one, else the first without a result."""
    wanted, name = message.tool_call_id or None, message.tool_name or None
    same_id = (call for call in pending if wanted is not None and call["id"] == wanted)
    same_name = (call for call in pending if wanted is None and name in (None, call["function"]["name"]))
    call = next(same_id, None) or next(same_name, None)
    if call is not None:
        pending.remove(call)
        wanted, name = call["id"], name or call["function"]["name"]
    fields = {"tool_call_id": wanted, "name": name}
    return {field: value for field, value in fields.items() if value is not None}
