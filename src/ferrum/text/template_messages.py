"""Clients' messages in the form that chat templates read: plain JSON, plain text, checked calls, names of reasoning.

What form a template reads is decided in `chat_template`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ferrum.core.errors import FerrumError, RequestError, Unsupported
from ferrum.core.values import readable_json, shown

Message = Mapping[str, Any]
"""A message for a template: `role`, `content` and further fields; JSON values only."""

REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""Clients' names for a message's reasoning. Most templates read the first, some the second."""


IMAGE: Final[Mapping[str, str]] = {"type": "image"}
"""The part of a content that stands for an image."""


def is_image(part: Any) -> bool:
    """Return whether a part of a content stands for an image."""
    return isinstance(part, Mapping) and part == IMAGE


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

    A missing content of an assistant's message becomes an empty text. A content with images stays a list of parts.

    Args:
        messages: in OpenAI's form. Further fields are kept for the template.
        as_parts: make content a list of parts instead of a text; see `ChatTemplate.reads_parts`.
        argument_text: keep arguments sent as JSON text; see `ChatTemplate.reads_argument_text`.

    Raises:
        RequestError: the messages are not a list of objects, or one is malformed; `param` names the place.
        Unsupported: content that is neither text nor `IMAGE`.
    """
    chat = []
    call_id = "call00000"  # OpenAI's older form has no ids: the place of the message stands for one
    for place, message in enumerate(json_objects(messages, "messages")):
        if message.get("function_call") is not None:
            call_id = f"call{place:05}"
        chat.append(_message(message, f"messages[{place}]", as_parts, argument_text, call_id))
    return chat


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
    if isinstance(content, list) and any(map(is_image, content)):
        message["content"] = _shown_parts(content, f"{where}.content")
    elif isinstance(content, str | list):
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


def _shown_parts(parts: Sequence[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """Return the texts and images of a content in their order, as templates of models that see read them."""
    return [
        dict(IMAGE) if is_image(part) else {"type": "text", "text": _part(part, f"{where}[{place}]")}
        for place, part in enumerate(parts)
    ]


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


# ---- Tool calls in messages, as chat templates read them: checked, with arguments as objects or as text ----

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


# ---- Find messages whose text a chat template leaves out: they are refused, not lost ----

_MARK: Final = "8261903{}3091628"
"""A text of digits, which templates do not change, with the place of its message."""

_MOVED: Final = ("system", "developer")


def refuse_lost_texts(messages: Sequence[Message], text: str, render: Callable[[Sequence[Message]], str]) -> None:
    """Refuse a conversation if the template leaves out the text of a message.

    Templates trim texts, write them as JSON, and drop earlier reasoning. A text that is not found counts as read if
    another one in its place is found.

    Args:
        messages: of the client.
        text: their rendering.
        render: renders other messages alike.

    Raises:
        RequestError: `param` is the first message that is left out.
    """
    missing = list(_missing(messages, text))
    if not missing:
        return
    marks = {place: _MARK.format(place) for place in missing}
    marked = [{**each, "content": marks[at]} if at in marks else each for at, each in enumerate(messages)]
    try:
        again = render(marked)
    except FerrumError:  # the template reads what stands in the text
        return
    for place, mark in marks.items():
        if mark not in again:
            role = messages[place].get("role")
            reason = f"the chat template leaves out this {role} message; put its text into another message"
            raise RequestError(reason, param=f"messages[{place}].content")


def _missing(messages: Sequence[Message], text: str) -> Iterator[int]:
    """Yield the places of messages whose text is not found."""
    begin = 0  # messages stand in order, so that the text is searched once; system messages may be moved
    said: Counter[str] = Counter()
    for place, message in enumerate(messages):
        if message.get("tool_calls") or message.get("function_call"):
            continue  # see `ChatTemplate.prepare`; some templates drop such content as reasoning
        for part in _shown_texts(message.get("content")):
            said[part] += 1
            position = text.find(part, begin)
            if position >= 0:
                begin = begin if message.get("role") in _MOVED else position + len(part)
            elif max(text.count(each) for each in (part, json.dumps(part, ensure_ascii=False)[1:-1])) < said[part]:
                yield place
                break


def _shown_texts(content: Any) -> Iterator[str]:
    """Yield the texts of a content without the white space around them."""
    parts = [content] if isinstance(content, str) else content if isinstance(content, list) else ()
    for part in parts:
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else part
        if isinstance(text, str) and text.strip():
            yield text.strip()


# ---- The message that a reply continues: mark its end, and cut the rendered text there ----

# It ends with a space: a template that trims messages removes it, which is how trimming is detected.
_END_MARK: Final = "\ue0f0end of the message to continue\ue0f0 "


def mark_end(chat: list[dict[str, Any]]) -> str:
    """Append the end mark to the final message's text and return that text."""
    content = chat[-1].get("content")
    if isinstance(content, str):
        chat[-1]["content"] = content + _END_MARK
        return content
    blocks = content if isinstance(content, list) else []
    for block in reversed(blocks):
        if isinstance(block, dict) and isinstance(text := block.get("text"), str):
            block["text"] = text + _END_MARK
            return text
    raise RequestError("needs a final message with text", param="continue_final_message")


def cut_at_mark(rendered: str, final: str) -> str:
    """Return a rendered text up to the end mark; `final` is the text that `mark_end` returned."""
    mark = _END_MARK.rstrip()
    place = rendered.rfind(mark)
    if place < 0 or final.strip() not in rendered:
        raise RequestError("the chat template omits or changes the final message", param="continue_final_message")
    trimmed = not rendered.startswith(_END_MARK, place)
    return rendered[:place].rstrip() if trimmed else rendered[:place]
