"""Conversations tried on a chat template, to find the form of message it renders.

`ChatTemplate` renders each at most once, when a message needs it. No decision is made here.
"""

from __future__ import annotations

from typing import Any, Final

QUESTION: Final[dict[str, Any]] = {"role": "user", "content": "a"}

SILENT: Final[list[dict[str, Any]]] = [QUESTION, {"role": "assistant"}, QUESTION]
"""The assistant's message has neither content nor calls."""

TOOL: Final = {
    "type": "function",
    "function": {"name": "f", "description": "b", "parameters": {"type": "object", "properties": {}}},
}


NAME: Final = "quorvimTool"
NAMED_BARE: Final = {"name": NAME, "description": "b", "parameters": {"type": "object", "properties": {}}}
NAMED: Final = {"type": "function", "function": NAMED_BARE}
"""A tool whose name no template has, in OpenAI's form and without its envelope."""


IDS: Final = ("call00000", "call_000000000000")
"""A short id of a call, and a longer one such as other servers give."""


def calls(
    *, argument_text: bool, arguments: Any = None, call_id: str | None = None, **fields: str | None
) -> list[dict[str, Any]]:
    """Return a conversation with a call in an earlier and in the last exchange.

    Args:
        argument_text: give empty arguments as JSON text instead of an object.
        arguments: used instead of empty ones.
        call_id: of the calls; by default a short one.
        fields: of the messages with calls: `content`, `thinking`; a missing one is absent.
    """
    if arguments is None:
        arguments = "{}" if argument_text else {}
    call_id = call_id or IDS[0]
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    exchange: list[dict[str, Any]] = [
        QUESTION,
        {"role": "assistant", **fields, "tool_calls": [call]},
        {"role": "tool", "name": "f", "tool_call_id": call_id, "content": "b"},
    ]
    return [*exchange, {"role": "assistant", "content": "c"}, *exchange]


def late_system(text: str) -> list[dict[str, Any]]:
    """Return a conversation with a system message of this text in the middle."""
    system = {"role": "system", "content": "b"}
    return [system, QUESTION, {"role": "assistant", "content": "c"}, {**system, "content": text}, QUESTION]


def thoughts(text: str) -> dict[str, list[dict[str, Any]]]:
    """Return conversations with this reasoning, by the form it has: names of fields, or parts of the content."""
    parts: list[dict[str, Any]] = [{"type": "thinking", "thinking": text}, {"type": "text", "text": "c"}]
    forms: dict[str, dict[str, Any]] = {
        "fields": {"content": "c", "reasoning_content": text, "thinking": text},
        "reasoning": {"content": "c", "reasoning": text},
        "thought": {"content": "c", "thought": text},
        "parts": {"content": parts},
    }
    exchange = calls(argument_text=False, content="")[:3]
    return {
        form: [QUESTION, {"role": "assistant", **fields}, exchange[0], exchange[1] | fields, exchange[2]]
        for form, fields in forms.items()
    }
