"""Find messages whose text a chat template leaves out: they are refused, not lost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ferrum.core.errors import FerrumError, RequestError
from ferrum.text.template_messages import Message

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
        for part in _texts(message.get("content")):
            said[part] += 1
            found = text.find(part, begin)
            if found >= 0:
                begin = begin if message.get("role") in _MOVED else found + len(part)
            elif max(text.count(each) for each in (part, json.dumps(part, ensure_ascii=False)[1:-1])) < said[part]:
                yield place
                break


def _texts(content: Any) -> Iterator[str]:
    """Yield the texts of a content without the white space around them."""
    parts = [content] if isinstance(content, str) else content if isinstance(content, list) else ()
    for part in parts:
        text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else part
        if isinstance(text, str) and text.strip():
            yield text.strip()
