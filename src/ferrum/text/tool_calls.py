"""Tool calls in messages, as chat templates read them: checked, with arguments as objects or as text."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.core.values import readable_json, shown

ID_LENGTH: Final = 9
"""Characters of ids of calls that every template accepts."""


def tool_calls(calls: Any, where: str, argument_text: bool) -> list[dict[str, Any]]:
    """Return the calls of a message for a template. Raises RequestError; `where` names the place of the calls."""
    if not isinstance(calls, list):
        raise RequestError("must be a list", param=where)
    return [_tool_call(call, f"{where}[{place}]", argument_text) for place, call in enumerate(calls)]


def _tool_call(call: Any, where: str, argument_text: bool) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise RequestError("must be an object", param=where)
    if not isinstance(call.get("id"), str | None):
        raise RequestError("must be a string", param=f"{where}.id")
    if call.get("type") == "custom":
        return _custom_call(call, where)
    if call.get("type") not in ("function", None):
        raise RequestError(f"must be 'function' or 'custom', not {shown(call['type'])}", param=f"{where}.type")
    return {**call, "function": function_of(call.get("function"), f"{where}.function", argument_text)}


def _custom_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a call of a custom tool as a function of one text: templates know functions only."""
    custom = call.get("custom")
    if not isinstance(custom, dict) or not all(isinstance(custom.get(each), str) for each in ("name", "input")):
        raise RequestError("must be an object with the strings `name` and `input`", param=f"{where}.custom")
    kept = {name: value for name, value in call.items() if name not in ("type", "custom")}
    function = {"name": custom["name"], "arguments": {"input": custom["input"]}}
    return {**kept, "type": "function", "function": function}


def function_of(function: Any, where: str, argument_text: bool) -> dict[str, Any]:
    """Return a called function with its arguments parsed, unless their text is wanted: clients send JSON text.

    A text that is no JSON object, as models write it and calls that were cut off have it, is the argument `input`.
    """
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError("must be an object with a string `name`", param=where)
    sent = function.get("arguments")
    if isinstance(sent, str):
        parsed = _parsed(sent)
        if argument_text and isinstance(parsed, dict):
            return {**function, "arguments": sent}
        arguments = {"input": sent} if parsed is _BROKEN else parsed or {}
        return {**function, "arguments": json.dumps(arguments, ensure_ascii=False) if argument_text else arguments}
    if not isinstance(sent, dict | None):
        raise RequestError("must be a JSON object or its text", param=f"{where}.arguments")
    return {**function, "arguments": sent or {}}


_BROKEN: Final = object()


def _parsed(text: str) -> Any:
    """Return the JSON object of a text; None for an empty one and for null, `_BROKEN` for others."""
    try:
        value = json.loads(readable_json(text)) if text.strip() else None
    except (ValueError, RecursionError):
        return _BROKEN
    return value if isinstance(value, dict | None) else _BROKEN


def with_argument_text(call: Any) -> Any:
    """Return a call with its arguments as JSON text; values that are not calls are left to the template."""
    match call:
        case {"function": {"arguments": dict(arguments)} as function}:
            return {**call, "function": {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}}
    return call


def with_short_ids(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose ids of calls have nine letters and digits: a hash of longer ones."""
    for message in chat:
        if isinstance(message.get("tool_call_id"), str):
            message["tool_call_id"] = _short_id(message["tool_call_id"])
        for call in message.get("tool_calls") or ():
            if isinstance(call.get("id"), str):
                call["id"] = _short_id(call["id"])
    return chat


def _short_id(sent: str) -> str:
    if len(sent) == ID_LENGTH and sent.isalnum():
        return sent
    return hashlib.sha256(sent.encode("utf-8", "surrogatepass")).hexdigest()[:ID_LENGTH]
