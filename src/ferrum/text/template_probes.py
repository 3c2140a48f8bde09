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


SAID: Final = "quorvimSaid"
ARGUMENT: Final = "quorvimArgument"
"""What is said before a call and what a call is given; no template contains it."""

ARGUMENTS: Final = ("quorvimOne", "quorvimTwo")
"""What two calls of one message are given."""

SYSTEM_MARKS: Final = ("quorvimFirst", "quorvimSecond", "quorvimLast")
_SYSTEM: Final[list[dict[str, Any]]] = [{"role": "system", "content": mark} for mark in SYSTEM_MARKS]
_ANSWER: Final[dict[str, Any]] = {"role": "assistant", "content": "c"}
SYSTEMS: Final[list[list[dict[str, Any]]]] = [
    [*_SYSTEM, QUESTION],
    [_SYSTEM[0], QUESTION, _ANSWER, _SYSTEM[1], QUESTION, _SYSTEM[2]],
]
"""Conversations with several system messages at the start, and with later ones."""


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


def arguments(*, as_text: bool) -> Any:
    """Return arguments that are found again in a text, as an object or as its JSON text."""
    return f'{{"a": "{ARGUMENT}"}}' if as_text else {"a": ARGUMENT}


def parallel_calls(*, argument_text: bool) -> list[dict[str, Any]]:
    """Return a conversation with two calls in one message."""
    made, results = [], []
    for place, mark in enumerate(ARGUMENTS):
        given = f'{{"a": "{mark}"}}' if argument_text else {"a": mark}
        call_id = f"{IDS[0][:-1]}{place}"
        made.append({"id": call_id, "type": "function", "function": {"name": "f", "arguments": given}})
        results.append({"role": "tool", "name": "f", "tool_call_id": call_id, "content": "b"})
    return [QUESTION, {"role": "assistant", "content": "", "tool_calls": made}, *results]


RESULTS: Final[list[list[dict[str, Any]]]] = [
    [
        *calls(argument_text=False, content="")[:2],
        {"role": "tool", "name": "f", "tool_call_id": IDS[0], "content": each},
    ]
    for each in ([{"type": "text", "text": SAID}], [{"type": "image"}, {"type": "text", "text": SAID}])
]
"""A result of a tool without an image, and one with an image."""


def found(text: str | None) -> set[str]:
    """Return those of the marks that a text contains."""
    return {mark for mark in (*SYSTEM_MARKS, *ARGUMENTS) if mark in (text or "")}


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
