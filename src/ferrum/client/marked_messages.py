"""Marks in messages and tools, which show where they stand in a rendered prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_MARK: Final = "\ue0f1"
"""Stands in no conversation."""


def marked(message: Mapping[str, Any], *, at_end: bool) -> dict[str, Any]:
    """Return a message whose texts have a mark before or after them, and whose last call has one more argument."""
    made = dict(message)
    content = message.get("content")
    if isinstance(content, list):
        made["content"] = [_marked_part(part, at_end=at_end) for part in content]
    elif isinstance(content, str) or not message.get("tool_calls"):
        made["content"] = _with_mark(content or "", at_end=at_end)
    for name in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(message.get(name), str):
            made[name] = _with_mark(message[name], at_end=at_end)
    calls = message.get("tool_calls")
    if at_end and isinstance(calls, list) and calls and isinstance(calls[-1], Mapping):
        made["tool_calls"] = [*calls[:-1], _marked_call(calls[-1])]
    return made


def _marked_part(part: Any, *, at_end: bool) -> Any:
    if not isinstance(part, Mapping):
        return part
    return {
        name: _with_mark(value, at_end=at_end) if name in ("text", "thinking") and isinstance(value, str) else value
        for name, value in part.items()
    }


def _with_mark(text: str, *, at_end: bool) -> str:
    return text + _MARK if at_end else _MARK + text


def _marked_call(call: Mapping[str, Any]) -> dict[str, Any]:
    kind = "custom" if "custom" in call else "function"
    called = call.get(kind)
    if not isinstance(called, Mapping):
        return dict(call)
    if kind == "custom":
        return {**call, kind: {**called, "input": f"{called.get('input', '')}{_MARK}"}}
    arguments = called.get("arguments")
    if isinstance(arguments, str):
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return {**call, kind: {**called, "arguments": arguments + _MARK}}
        return {**call, kind: {**called, "arguments": json.dumps({**given, _MARK: _MARK}, ensure_ascii=False)}}
    given = arguments if isinstance(arguments, Mapping) else {}
    return {**call, kind: {**called, "arguments": {**given, _MARK: _MARK}}}


def marked_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool whose description has a mark at its end."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    return {**tool, "function": {**function, "description": f"{function.get('description') or ''}{_MARK}"}}
