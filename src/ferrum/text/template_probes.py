"""Conversations tried on a chat template, to find the form of message it renders.

`ChatTemplate` renders each at most once, when a message needs it. No decision is made here.
"""

from __future__ import annotations

from typing import Any, Final

_QUESTION: Final[dict[str, Any]] = {"role": "user", "content": "a"}

SILENT: Final[list[dict[str, Any]]] = [_QUESTION, {"role": "assistant"}, _QUESTION]
"""The assistant's message has neither content nor calls."""

TOOL: Final = {
    "type": "function",
    "function": {"name": "f", "description": "b", "parameters": {"type": "object", "properties": {}}},
}


def calls(*, argument_text: bool, **content: str | None) -> list[dict[str, Any]]:
    """Return a conversation with a call in an earlier and in the last exchange.

    Args:
        argument_text: give the arguments as JSON text instead of an object.
        content: the field of the messages with calls; none: it is absent.
    """
    arguments = "{}" if argument_text else {}
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": arguments}}
    exchange: list[dict[str, Any]] = [
        _QUESTION,
        {"role": "assistant", **content, "tool_calls": [call]},
        {"role": "tool", "name": "f", "tool_call_id": "call00000", "content": "b"},
    ]
    return [*exchange, {"role": "assistant", "content": "c"}, *exchange]
