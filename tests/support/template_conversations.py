"""Conversations for chat templates of models: missing contents, calls, and system messages in unusual places."""

from __future__ import annotations

from typing import Any


def _call(number: int, city: str) -> dict[str, Any]:
    function = {"name": "weather", "arguments": {"city": city}}
    return {"id": f"call0000{number}", "type": "function", "function": function}


def _result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": "weather", "content": text}


def _assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


ASKED = {"role": "user", "content": "Weather?"}
BRIEF = {"role": "system", "content": "Be brief."}
DRY = _assistant(content="Dry.")
BONN, OSLO = _call(1, "Bonn"), _call(2, "Oslo")
RAIN, SNOW = _result(1, "rain"), _result(2, "snow")

COMMON: dict[str, list[dict[str, Any]]] = {
    "question": [ASKED],
    "system": [BRIEF, ASKED],
    "developer": [BRIEF | {"role": "developer"}, ASKED],
    "late system": [ASKED, DRY, BRIEF, ASKED],
    "turns": [ASKED, DRY, ASKED],
    "empty question": [ASKED | {"content": ""}],
    "empty answer": [ASKED, _assistant(content=""), ASKED],
    "call and text": [ASKED, _assistant(content="Let me look.", tool_calls=[BONN]), RAIN],
    "calls and text": [ASKED, _assistant(content="Both.", tool_calls=[BONN, OSLO]), RAIN, SNOW],
}
"""Every message has a content."""

WITHOUT_CONTENT: dict[str, list[dict[str, Any]]] = {
    "null answer": [ASKED, _assistant(content=None), ASKED],
    "no answer": [ASKED, _assistant(), ASKED],
    "call and null": [ASKED, _assistant(content=None, tool_calls=[BONN]), RAIN],
    "call": [ASKED, _assistant(tool_calls=[BONN]), RAIN],
    "call in an earlier turn": [ASKED, _assistant(content=None, tool_calls=[BONN]), RAIN, DRY, ASKED],
    "call and empty text": [ASKED, _assistant(content="", tool_calls=[BONN]), RAIN, DRY, ASKED],
    "calls": [ASKED, _assistant(tool_calls=[BONN, OSLO]), RAIN, SNOW],
}
"""An assistant's message has none, or an empty one with calls, which means the same."""
