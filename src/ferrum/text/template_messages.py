"""Clients' messages in the form that chat templates read: plain JSON, plain text, checked calls, names of reasoning.

What form a template reads is decided in `chat_template`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ferrum.core.errors import RequestError, Unsupported
from ferrum.text.tool_calls import function_of, tool_calls

Message = Mapping[str, Any]
"""A message for a template: `role`, `content` and further fields; JSON values only."""

REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""Clients' names for a message's reasoning. Most templates read the first, some the second."""


def json_objects(values: Sequence[Mapping[str, Any]], param: str) -> list[dict[str, Any]]:
    """Return copies of objects in exact JSON types. Raises RequestError about `param` for anything else."""
    if not isinstance(values, list | tuple) or not all(isinstance(value, Mapping) for value in values):
        raise RequestError("must be a list of objects", param=param)
    return [plain_json(value, param) for value in values]


def plain_json(value: Any, param: str) -> Any:
    """Return a copy of a JSON value in exact JSON types.

    Templates see no methods of the caller's classes.

    Raises:
        RequestError: the value is not JSON, or nested too deeply.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    try:
        if isinstance(value, Mapping):
            return {str(name): plain_json(entry, param) for name, entry in value.items()}
        if isinstance(value, list | tuple):
            return [plain_json(entry, param) for entry in value]
    except RecursionError:
        raise RequestError("nested too deeply", param=param) from None
    if isinstance(value, str):
        return str.__str__(value)
    raise RequestError(f"contains a {type(value).__name__}, which is not a JSON value", param=param)


def conversation(messages: Sequence[Message], *, keep_null: bool) -> list[dict[str, Any]]:
    """Return a copy of the messages without null fields: most templates test fields for presence, not for null.

    Args:
        messages: as `for_template` returns them, or in a template's own form.
        keep_null: keep the null content of messages with calls.
    """
    chat = json_objects(messages, "messages")
    if not chat:
        raise RequestError("must contain at least one message", param="messages")
    for message in chat:
        kept = "content" if keep_null and message.get("tool_calls") else None
        for name in [name for name, value in message.items() if value is None and name != kept]:
            del message[name]
        reasoning = next((message[name] for name in REASONING if name in message), None)
        if reasoning is not None:
            message["reasoning_content"] = reasoning
            message.setdefault("thinking", reasoning)
    return chat


def for_template(
    messages: Sequence[Message], *, as_parts: bool = False, argument_text: bool = False
) -> list[dict[str, Any]]:
    """Convert messages for a template: plain text, tool arguments as objects, `developer` as `system`.

    A missing content of an assistant's message becomes an empty text.

    Args:
        messages: in OpenAI's form. Further fields are kept for the template.
        as_parts: make content a list of parts instead of a text; see `ChatTemplate.reads_parts`.
        argument_text: keep arguments sent as JSON text; see `ChatTemplate.reads_argument_text`.

    Raises:
        RequestError: the messages are not a list of objects, or one is malformed; `param` names the place.
        Unsupported: content that is not text.
    """
    chat = []
    call_id = _older_id(0)
    for place, message in enumerate(json_objects(messages, "messages")):
        if message.get("function_call") is not None:
            call_id = _older_id(place)
        chat.append(_message(message, f"messages[{place}]", as_parts, argument_text, call_id))
    return chat


def _older_id(place: int) -> str:
    """Return the id of a call in OpenAI's older form, which has none, by the place of its message."""
    return f"call{place:05}"


def has_calls(messages: Sequence[Message]) -> bool:
    """Return whether a message has calls."""
    objects = [each for each in messages if isinstance(each, Mapping)] if isinstance(messages, list | tuple) else []
    return any(each.get("tool_calls") or each.get("function_call") for each in objects)


def reasoning_of(message: Message) -> str | None:
    """Return the reasoning of a message under the first of its names."""
    found = next((message[name] for name in REASONING if message.get(name)), None)
    return found if isinstance(found, str) else None


def joined(content: str | Sequence[Mapping[str, Any]], where: str) -> str:
    """Return a text, or its parts joined by line breaks.

    Raises:
        RequestError: there are no parts.
        Unsupported: a part is not text.
    """
    return content if isinstance(content, str) else "\n".join(_texts(content, where))


def _message(message: dict[str, Any], where: str, as_parts: bool, argument_text: bool, call_id: str) -> dict[str, Any]:
    if message.get("role") == "developer":
        message["role"] = "system"
    if message.get("role") == "function":  # nearly all templates would leave out the result of an older call
        message |= {"role": "tool", "tool_call_id": call_id}
    if message.get("content") is None:
        message["content"] = message.get("refusal")  # a refusal is the assistant's text
    content = message["content"]
    if isinstance(content, list) and message.get("role") == "assistant":
        content = _without_thoughts(message, content, f"{where}.content")
    if content is None and message.get("role") == "assistant":
        content = ""
    if isinstance(content, str | list):
        texts = [content] if isinstance(content, str) else _texts(content, f"{where}.content")
        # What a model wrote in parts is one text, as `output_text` of OpenAI's client; others give separate texts.
        between = "" if message.get("role") == "assistant" else "\n"
        message["content"] = [{"type": "text", "text": text} for text in texts] if as_parts else between.join(texts)
    # Templates test for the field: given an empty list, many would write neither calls nor text.
    calls, called = message.pop("tool_calls", None), message.pop("function_call", None)
    if called is not None:  # OpenAI's older form of a single call
        function = function_of(called, f"{where}.function_call", argument_text)
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
    if calls:
        message["tool_calls"] = tool_calls(calls, f"{where}.tool_calls", argument_text)
    return message


def _without_thoughts(message: dict[str, Any], parts: list[Any], where: str) -> list[Any] | None:
    """Move parts of the type `thinking`, as Mistral's clients send them, to the field of reasoning."""
    kept, thoughts = [], []
    for place, part in enumerate(parts):
        if not isinstance(part, Mapping) or part.get("type") != "thinking":
            kept.append(part)
            continue
        thought = part.get("thinking")
        if not isinstance(thought, str | list):
            raise RequestError("must be a string or a list of parts", param=f"{where}[{place}].thinking")
        thoughts.append(joined(thought, f"{where}[{place}].thinking"))
    if thoughts:
        message.setdefault(REASONING[0], "\n".join(thoughts))
    return kept if kept or not thoughts else None


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
