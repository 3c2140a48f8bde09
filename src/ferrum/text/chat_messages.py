"""Chat messages in OpenAI's form, converted to the form that chat templates read.

The server and the library share this conversion. Rendering is in `chat_template`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ferrum.core.errors import RequestError, Unsupported
from ferrum.text.chat_template import Message, json_objects


def for_template(messages: Sequence[Message], *, as_parts: bool = False) -> list[dict[str, Any]]:
    """Convert messages for a template: plain text, tool arguments as objects, `developer` as `system`.

    Args:
        messages: in OpenAI's form. Further fields are kept for the template.
        as_parts: make content a list of parts instead of a text; see `ChatTemplate.reads_parts`.

    Raises:
        RequestError: the messages are not a list of objects, or one is malformed; `param` names the place.
        Unsupported: content that is not text.
    """
    objects = json_objects(messages, "messages")
    return [_message(message, f"messages[{place}]", as_parts) for place, message in enumerate(objects)]


def joined(content: str | Sequence[Mapping[str, Any]], where: str) -> str:
    """Return a text, or its parts joined by line breaks.

    Raises:
        RequestError: there are no parts.
        Unsupported: a part is not text.
    """
    return content if isinstance(content, str) else "\n".join(_texts(content, where))


def _message(message: dict[str, Any], where: str, as_parts: bool) -> dict[str, Any]:
    if message.get("role") == "developer":
        message["role"] = "system"
    if message.get("content") is None:
        message["content"] = message.get("refusal")  # a refusal is the assistant's text
    content = message["content"]
    if isinstance(content, str | list):
        texts = [content] if isinstance(content, str) else _texts(content, f"{where}.content")
        message["content"] = [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)
    # Templates test for the field: given an empty list, many would write neither calls nor text.
    calls, called = message.pop("tool_calls", None), message.pop("function_call", None)
    if called is not None:  # OpenAI's older form of a single call
        message["tool_calls"] = [{"type": "function", "function": _function(called, f"{where}.function_call")}]
    if calls:
        message["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls")
    return message


def _texts(parts: Sequence[Mapping[str, Any]], where: str) -> list[str]:
    if not parts:
        raise RequestError("must not be empty", param=where)
    return [_part(part, f"{where}[{place}]") for place, part in enumerate(parts)]


def _part(part: Mapping[str, Any], where: str) -> str:
    if not isinstance(part, Mapping):
        raise RequestError("must be an object", param=where)
    kind = part.get("type")
    if kind not in ("text", "refusal"):
        raise Unsupported(f"{where}.type", f"{kind!r}; only text parts are supported")
    text = part.get(kind)
    if not isinstance(text, str):
        raise RequestError("must be a string", param=f"{where}.{kind}")
    return text


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise RequestError("must be a list", param=where)
    return [_tool_call(call, f"{where}[{place}]") for place, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise RequestError("must be an object", param=where)
    return {**call, "function": _function(call.get("function"), f"{where}.function")}


def _function(function: Any, where: str) -> dict[str, Any]:
    """Return a called function with its arguments parsed: clients send them as JSON text."""
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError("must be an object with a string `name`", param=where)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise RequestError("must be valid JSON", param=f"{where}.arguments") from None
    if not isinstance(arguments, dict | None):
        raise RequestError("must be a JSON object", param=f"{where}.arguments")
    return {**function, "arguments": arguments or {}}
