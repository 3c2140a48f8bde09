"""Messages as clients write them, to messages as chat templates read them: the same ones for a server and a library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ferrum.core.errors import RequestError, Unsupported
from ferrum.text.chat_template import Message, json_objects


def for_template(messages: Sequence[Message], *, as_parts: bool = False) -> list[dict[str, Any]]:
    """Messages for a template: one text each, arguments of tools as objects, `developer` as the system it replaces.

    Args:
        messages: as clients of OpenAI's API write them. What a template may read beyond that stays as it is.
        as_parts: content becomes a list of parts instead of a text; see `ChatTemplate.reads_parts`.

    Raises:
        RequestError: they are not a list of objects, or what one holds has no meaning; `param` says where.
        Unsupported: content that is no text.
    """
    objects = json_objects(messages, "messages")
    return [_message(message, f"messages[{place}]", as_parts) for place, message in enumerate(objects)]


def joined(content: str | Sequence[Mapping[str, Any]], where: str) -> str:
    """A text, or its parts joined by line ends.

    Raises:
        RequestError, Unsupported: there is no part, or one that is no text.
    """
    return content if isinstance(content, str) else "\n".join(_texts(content, where))


def _message(message: dict[str, Any], where: str, as_parts: bool) -> dict[str, Any]:
    if message.get("role") == "developer":
        message["role"] = "system"
    if message.get("content") is None:
        message["content"] = message.get("refusal")  # it is what the assistant said
    content = message["content"]
    if isinstance(content, str | list):
        texts = [content] if isinstance(content, str) else _texts(content, f"{where}.content")
        message["content"] = [{"type": "text", "text": text} for text in texts] if as_parts else "\n".join(texts)
    # Templates ask whether the field is there: with an empty list in it they would write no calls, and no text either.
    calls, called = message.pop("tool_calls", None), message.pop("function_call", None)
    if called is not None:  # the form before there could be several
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
        raise Unsupported(f"{where}.type", f"{kind!r} is not served, only text")
    text = part.get(kind)
    if not isinstance(text, str):
        raise RequestError("must be a text", param=f"{where}.{kind}")
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
    """A called function with its arguments as an object: clients have them as JSON text."""
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError("must be an object with a name", param=where)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise RequestError("must be JSON", param=f"{where}.arguments") from None
    if not isinstance(arguments, dict | None):
        raise RequestError("must be a JSON object", param=f"{where}.arguments")
    return {**function, "arguments": arguments or {}}
