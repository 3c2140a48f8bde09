"""The conversation of a body, and the text that the model's chat template makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.engine.model_client import Front
from ferrum.server.errors import invalid
from ferrum.server.prepare import renamed
from ferrum.server.requests import Message, TemplateBody, TokenizeRequest

LETTERS_PER_TOKEN: Final = 64
"""A text of more characters for each token of the context is not what a template was meant to make."""


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages for `Front.render`.

    Raises:
        RequestError: a message that lacks what its role demands.
    """
    for place, message in enumerate(messages):
        _check(message, f"messages[{place}]")
    return [message.model_dump(exclude_none=True) for message in messages]


def _check(message: Message, where: str) -> None:
    calls = message.role == "assistant" and (message.tool_calls or message.function_call)
    if message.content is None and message.refusal is None and not calls:
        raise invalid(f"{where}.content", "must not be null, but of an assistant that calls tools")
    if message.role == "tool" and message.tool_call_id is None:
        raise invalid(f"{where}.tool_call_id", "a tool's message must have one")
    if message.role == "function" and message.name is None:
        raise invalid(f"{where}.name", "a function's message must have one")


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
