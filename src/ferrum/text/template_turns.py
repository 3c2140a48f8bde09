"""Messages moved to where a chat template renders them: late system messages, content next to calls, images of results.

Which move a template needs is decided in `chat_template`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, Final, TypeAlias

from ferrum.text.template_messages import REASONING, is_image, reasoning_of

Chat: TypeAlias = list[dict[str, Any]]
"""Messages as `for_template` returns them."""

Move: TypeAlias = Callable[[Chat], Chat]
"""Returns messages of which some are moved. It does not change its argument."""


def text_of(content: Any) -> str:
    """Return a content's text; parts are joined by line breaks."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str))


def with_system_first(chat: Chat) -> Chat:
    """Join the system messages at the start; later ones become text of the user, joined to adjacent user messages."""
    moved: Chat = []
    joins = False  # the last message has text of a system message, and what the user says next
    for message in chat:
        if message.get("role") == "system" and any(each.get("role") != "system" for each in moved):
            message, late = {**message, "role": "user"}, True
        else:
            late = False
        last = moved[-1] if moved else {}
        if message.get("role") == last.get("role") == "system":
            moved[-1] = _joined(last, message, "\n\n")
        elif message.get("role") == last.get("role") == "user" and (late or joins):
            moved[-1] = _joined(last, message, "\n")
            joins = True
        else:
            moved.append(message)
            joins = late
    return moved


def with_content_before_calls(chat: Chat) -> Chat:
    """Make the content of a message with calls a message of the assistant before it."""
    moved: Chat = []
    for message in chat:
        if _says_and_calls(message):
            moved.append({"role": message["role"], "content": message["content"]})
            message = {name: value for name, value in message.items() if name != "content"}
        moved.append(message)
    return moved


def with_content_as_reasoning(chat: Chat) -> Chat:
    """Append the content of messages with calls to their reasoning."""
    moved: Chat = []
    for message in chat:
        if _says_and_calls(message):
            reasoning = "\n".join(filter(None, (reasoning_of(message), text_of(message["content"]))))
            kept = {name: value for name, value in message.items() if name not in ("content", *REASONING)}
            message = {**kept, REASONING[0]: reasoning}
        moved.append(message)
    return moved


def with_content_in_answers(chat: Chat) -> Chat:
    """Put the contents of messages with calls before the answer of their turn.

    Without an answer they become one message before the first of these calls. So users and answers alternate.
    """
    moved: Chat = []
    contents: list[dict[str, Any]] = []
    first = 0
    for message in [*chat, {"role": "user"}]:
        answers = message.get("role") == "assistant" and not message.get("tool_calls")
        if contents and (answers or message.get("role") == "user"):
            said = contents[0]
            for each in [*contents[1:], *([message] if answers else [])]:
                said = _joined(said, each, "\n\n")
            if answers:
                message = {**message, "content": said["content"]}
            else:
                moved.insert(first, said)
            contents = []
        if _says_and_calls(message):
            first = first if contents else len(moved)
            contents.append({"role": "assistant", "content": message["content"]})
            message = {name: value for name, value in message.items() if name != "content"}
        moved.append(message)
    return moved[:-1]


def with_calls_apart(chat: Chat) -> Chat:
    """Give each call a message, and put its result after it, as of calls one after the other."""
    moved: Chat = []
    for place, message in enumerate(chat):
        calls = message.get("tool_calls") or ()
        if message.get("role") == "tool" and moved and _calls_before(chat, place) > 1:
            continue  # stands after its call
        if len(calls) < 2:
            moved.append(message)
            continue
        results = list(takewhile(lambda each: each.get("role") == "tool", chat[place + 1 :]))
        for number, call in enumerate(calls):
            kept = message if not number else {"role": message["role"], "content": ""}
            moved.append({**kept, "tool_calls": [call]})
            own = [each for each in results if each.get("tool_call_id") == call.get("id")] or results[:1]
            own = results if number == len(calls) - 1 else own
            moved += own
            results = [each for each in results if not any(each is other for other in own)]
    return moved


def shows_results(chat: Chat) -> bool:
    """Return whether a result of a tool has images."""
    return any(message.get("role") == "tool" and _images(message) for message in chat)


def with_results_shown_after(chat: Chat, *, as_parts: bool) -> Chat:
    """Make the images of results a message of the user after them, or the begin of the one that is there.

    `as_parts` is as of `for_template`.
    """
    moved: Chat = []
    images: list[Any] = []
    for message in [*chat, {}]:
        if message.get("role") == "tool":
            if found := _images(message):
                images += found
                texts = [part for part in message["content"] if not is_image(part)]
                message = {**message, "content": texts if as_parts else text_of(texts)}
        elif images:
            shown = {"role": "user", "content": images}
            images = []
            if message.get("role") == "user":
                message = _joined(shown, message, "\n")
            else:
                moved.append(shown)
        moved.append(message)
    return moved[:-1]


def with_results_shown_before(chat: Chat, *, as_parts: bool) -> Chat:
    """Append the images of results to the last message of the user, for templates where users and answers alternate.

    `as_parts` is as of `for_template`.
    """
    moved: Chat = []
    asked: int | None = None
    for message in chat:
        asked = len(moved) if message.get("role") == "user" else asked
        if message.get("role") == "tool" and asked is not None and (found := _images(message)):
            moved[asked] = _joined(moved[asked], {"content": found}, "\n")
            texts = [part for part in message["content"] if not is_image(part)]
            message = {**message, "content": texts if as_parts else text_of(texts)}
        moved.append(message)
    return moved


def _images(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return [part for part in content if is_image(part)] if isinstance(content, list) else []


def _parts(content: Any) -> list[Any]:
    """Return a content as parts; an empty one has none."""
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _calls_before(chat: Chat, place: int) -> int:
    """Return the number of calls of the message before the results that end at a place."""
    before = next((each for each in reversed(chat[:place]) if each.get("role") != "tool"), {})
    return len(before.get("tool_calls") or ())


def unmoved(chat: Chat) -> Chat:
    """Return the messages as they are."""
    return chat


CONTENT_MOVES: Final[tuple[Move, ...]] = (
    unmoved,
    with_content_before_calls,
    with_content_in_answers,
)
"""Ways to keep the content of messages with calls, the best first."""


def has_late_system(chat: Chat) -> bool:
    """Return whether a system message follows another message."""
    return any(message.get("role") == "system" for message in chat[1:])


def has_calls_together(chat: Chat) -> bool:
    """Return whether a message has several calls."""
    return any(len(message.get("tool_calls") or ()) > 1 for message in chat)


def says_and_thinks_and_calls(chat: Chat) -> bool:
    """Return whether a message has reasoning, content and calls."""
    return any(_says_and_calls(message) and reasoning_of(message) for message in chat)


def says_and_calls(chat: Chat) -> bool:
    """Return whether a message has content and calls."""
    return any(map(_says_and_calls, chat))


def _says_and_calls(message: Mapping[str, Any]) -> bool:
    return bool(message.get("tool_calls")) and bool(text_of(message.get("content")).strip())


def _joined(message: Mapping[str, Any], other: Mapping[str, Any], separator: str) -> dict[str, Any]:
    """Return a message with the text of another appended."""
    first, second = message.get("content"), other.get("content")
    if isinstance(first, list) or isinstance(second, list):
        return {**message, "content": [*_parts(first), *_parts(second)]}
    texts = filter(None, (text_of(first), text_of(second)))
    return {**message, "content": separator.join(texts)}
