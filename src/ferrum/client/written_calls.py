"""Calls as text of a message, for chat templates that write none: what the model wrote when it called."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ferrum.core.output_format import OutputFormat
from ferrum.formats.writing import write_output
from ferrum.text.template_turns import text_of


def with_written_calls(chat: Sequence[dict[str, Any]], format: OutputFormat | None) -> list[dict[str, Any]]:
    """Return messages whose calls are part of their text.

    Args:
        chat: as `ChatTemplate.prepare` returns it.
        format: of the model. Without one for calls, a call is a line of JSON.
    """
    return [_written(message, format) if message.get("tool_calls") else message for message in chat]


def _written(message: dict[str, Any], format: OutputFormat | None) -> dict[str, Any]:
    said = text_of(message.get("content")) or None
    calls = [(call["function"]["name"], _arguments(call["function"]["arguments"])) for call in message["tool_calls"]]
    if format is None or format.calls is None:
        lines = [json.dumps({"name": name, "arguments": given}, ensure_ascii=False) for name, given in calls]
        content = "\n".join([*([said] if said else ()), *lines])
    else:
        content = write_output(format, content=said, calls=calls)
    return {**{name: value for name, value in message.items() if name != "tool_calls"}, "content": content}


def _arguments(given: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = json.loads(given) if isinstance(given, str) else given
    return arguments
