"""Messages as clients send them, to messages as chat templates read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.engine.front import Front
from ferrum.server.errors import invalid, unsupported
from ferrum.server.prepare import renamed
from ferrum.server.requests import ContentPart, Message, TemplateBody, TokenizeRequest

LETTERS_PER_TOKEN: Final = 64
"""A text of more characters for each token of the context is not what a template was meant to make."""


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages for a template: text content, tool arguments as objects, `developer` as the system that it replaces.

    Raises:
        RequestError, ApiError: a message that lacks what its role demands, or content that is no text.
    """
    return [_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _message(message: Message, where: str) -> dict[str, Any]:
    plain = message.model_dump(exclude_none=True)
    plain["role"] = "system" if message.role == "developer" else message.role
    content = _content(message, where)
    if content is not None:
        plain["content"] = content
    elif message.role != "assistant" or not message.tool_calls:
        raise invalid(f"{where}.content", "must not be null, but of an assistant that calls tools")
    if message.role == "tool" and message.tool_call_id is None:
        raise invalid(f"{where}.tool_call_id", "a tool's message must have one")
    if message.role == "function" and message.name is None:
        raise invalid(f"{where}.name", "a function's message must have one")
    if message.tool_calls is not None:
        plain["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(message.tool_calls)
        ]
    return plain


def _content(message: Message, where: str) -> str | None:
    """The text of a message; parts are joined by line ends, and a refusal is what the assistant said."""
    if message.content is None:
        return message.refusal
    return joined(message.content, f"{where}.content")


def joined(content: str | list[ContentPart], where: str) -> str:
    """A text, or its parts joined by line ends.

    Raises:
        ApiError: there is no part, or one that is no text.
    """
    if isinstance(content, str):
        return content
    if not content:
        raise invalid(where, "must not be empty")
    return "\n".join(_part(part, f"{where}[{place}]") for place, part in enumerate(content))


def _part(part: ContentPart, where: str) -> str:
    texts = {"text": part.text, "refusal": part.refusal}
    if part.type not in texts:
        raise unsupported(f"{where}.type", f"{part.type!r} is not served, only text")
    text = texts[part.type]
    if text is None:
        raise invalid(f"{where}.{part.type}", "is missing")
    return text


def _tool_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    """A call with its arguments as an object: the wire has them as JSON text."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(f"{where}.function", "must be an object with a name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise invalid(f"{where}.function.arguments", "must be JSON") from None
    if not isinstance(arguments, dict):
        raise invalid(f"{where}.function.arguments", "must be a JSON object")
    return {**call, "function": {**function, "arguments": arguments}}


def render(front: Front, body: TemplateBody | TokenizeRequest) -> str:
    """The text of a body's conversation.

    Raises:
        RequestError: what the template or the messages lack.
    """
    try:
        text = front.render(
            conversation(body.messages or ()),
            chat_template=body.chat_template,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=bool(body.continue_final_message),
            chat_template_kwargs=body.chat_template_kwargs,
            foreign=True,
        )
    except RequestError as error:
        raise renamed(error, {"prompt": "messages"}) from None
    longest = LETTERS_PER_TOKEN * front.router.info.max_sequence_length
    if body.chat_template is not None and len(text) > longest:
        # A few letters of a template may make megabytes, which would then be encoded only to be refused.
        raise invalid("chat_template", f"it makes a text of {len(text)} characters, more than {longest}")
    return text
