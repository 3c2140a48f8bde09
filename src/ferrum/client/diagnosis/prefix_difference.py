"""Where a prompt diverges from an earlier one, and why: the variable, tool or message that differs.

Nothing is guessed from the texts: the earlier conversation is rendered again with one change after the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias
from unicodedata import normalize

from ferrum.core.errors import FerrumError

MAX_RENDERS: Final = 24
"""Renderings of one diagnosis; most need two or three."""
LEAST_RENDERS: Final = 6
MAX_CHARACTERS: Final = 8_000_000
"""Of all renderings of a diagnosis, unless they are few; a million take about 50 ms."""

_CHUNK: Final = 4096
"""Characters that are compared at once."""

_MARK: Final = "\ue0f1"
"""Stands in no conversation."""


# Conversations in a form to keep and to compare


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt was rendered from: JSON texts, which compare fast and keep the order of fields.

    Attributes:
        messages, tools: one text each.
        variables: of the template, by name.
        flags: further arguments of `ModelClient.render`, by name.
    """

    messages: tuple[str, ...]
    tools: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    flags: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> int:
        """Characters of all texts, with an allowance for objects."""
        named = sum(len(name) + len(value) + 100 for name, value in (*self.variables, *self.flags))
        return named + sum(len(text) + 64 for text in (*self.messages, *self.tools))


def conversation_of(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any] | None,
    flags: Mapping[str, Any],
) -> Conversation:
    """Return what a prompt is rendered from; all values are JSON."""
    return Conversation(
        tuple(map(written, messages)),
        tuple(map(written, tools or ())),
        tuple((name, written(value)) for name, value in (variables or {}).items()),
        tuple((name, written(value)) for name, value in flags.items()),
    )


def written(value: Any) -> str:
    """Return a value as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation with its text."""

    conversation: Conversation
    text: str


def common_prefix(first: str | bytes, second: str | bytes) -> int:
    """Return the length of the common prefix of two texts, or of two byte strings."""
    end = min(len(first), len(second))
    at = 0
    while at < end and first[at : at + _CHUNK] == second[at : at + _CHUNK]:
        at += _CHUNK
    low, high = min(at, end), min(at + _CHUNK, end)
    while low < high:
        middle = (low + high + 1) // 2
        if first[at:middle] == second[at:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_suffix(first: str, second: str) -> int:
    """Return the length of the common suffix of two texts."""
    most = min(len(first), len(second))
    at = 0
    while at < most and _tail(first, at) == _tail(second, at):
        at += _CHUNK
    low, high = min(at, most), min(at + _CHUNK, most)
    while low < high:
        middle = (low + high + 1) // 2
        if first[len(first) - middle :] == second[len(second) - middle :]:
            low = middle
        else:
            high = middle - 1
    return low


def _tail(text: str, at: int) -> str:
    """Return the chunk that ends `at` characters before the end."""
    return text[max(0, len(text) - at - _CHUNK) : len(text) - at]


# The search


Kind: TypeAlias = Literal["variable", "tool", "message", "template", "generation_prompt"]


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a prompt.

    Attributes:
        kind: `template` is text that the template writes before the first message.
        index: of the tool or message; that after the last one is the end of the list.
        name: of the variable.
    """

    kind: Kind
    index: int = 0
    name: str = ""


Form: TypeAlias = Literal["NFC", "NFKC"]
_FORMS: Final[Mapping[Form, tuple[str, str]]] = {"NFKC": ("\ufb01", "fi"), "NFC": ("e\u0301", "\u00e9")}
"""Two spellings of a text that only a tokenizer which normalizes to this form encodes alike."""

Render: TypeAlias = Callable[[Conversation], str]
"""Renders a conversation. Raises FerrumError if the template refuses it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two prompts.

    Attributes:
        place: where it stands in the new prompt.
        cause: the first changed part of the conversation that brings it; None: what is rendered did not change, but
            the template renders it differently, as one that writes the date does.
    """

    place: Place
    cause: Place | None


def normal_form(encode: Callable[[str], Sequence[int]]) -> Form | None:
    """Return the form to which a tokenizer normalizes texts, of which two may then have the same tokens."""
    return next((form for form, (one, other) in _FORMS.items() if list(encode(one)) == list(encode(other))), None)


def first_difference(old: Rendered, new: Rendered, render: Render, form: Form | None = None) -> Difference | None:
    """Return where two prompts first differ, and why.

    Args:
        old, new: neither text begins with the other.
        render: renders conversations as the two were.
        form: of the tokenizer, for which spellings of one text do not differ.

    Returns:
        None if it takes too many renderings.
    """
    normal: Callable[[str], str] = str if form is None else partial(normalize, form)

    def visible(conversation: Conversation) -> str:
        return normal(render(conversation))

    first, second = (Rendered(each.conversation, normal(each.text)) for each in (old, new))
    search = _Search(first, second, visible)
    try:
        cause = search.cause()
        return Difference(search.place(cause), cause)
    except _TooManyError:
        return None


class _TooManyError(Exception):
    """The renderings are used up."""


class _Search:
    """The renderings of one diagnosis."""

    def __init__(self, old: Rendered, new: Rendered, render: Render) -> None:
        self._old, self._new = old, new
        self._at = common_prefix(old.text, new.text)
        self._render = render
        self._left = max(LEAST_RENDERS, min(MAX_RENDERS, MAX_CHARACTERS // (len(new.text) + 1)))
        self._ends: dict[int, int] = {}

    def cause(self) -> Place | None:
        """Return the first change without which the texts agree up to the difference."""
        changes = list(_changes(self._old.conversation, self._new.conversation))
        if not changes:
            return None
        last = count = 0
        while count < len(changes):  # the first change is nearly always the one
            count = min(len(changes), 2 * count or 1)
            if count == len(changes) or self._differs(changes[:count]):
                break
            last = count
        while count - last > 1:
            middle = (last + count) // 2
            if self._differs(changes[:middle]):
                count = middle
            else:
                last = middle
        return changes[count - 1]

    def _differs(self, changes: Sequence[Place]) -> bool:
        """Return whether the old conversation with these changes differs from itself as the new one does."""
        text = self._rendered(_with(self._old.conversation, self._new.conversation, changes))
        return text is not None and common_prefix(self._old.text, text) <= self._at

    def place(self, cause: Place | None) -> Place:
        """Return the part of the new prompt in which the difference stands."""
        if cause is not None and cause.kind == "tool":
            return cause
        found = self._outside_tools(cause)
        if found.kind == "generation_prompt" or not self._new.conversation.tools:
            return found
        end = self._end_of_tool(len(self._new.conversation.tools) - 1)
        if self._at >= end or (found.kind == "message" and self._end(found.index) <= end):
            return found
        # Some templates render the tools in the last message of the user.
        first, last = 0, len(self._new.conversation.tools) - 1
        while first < last:
            middle = (first + last) // 2
            if self._at < self._end_of_tool(middle):
                last = middle
            else:
                first = middle + 1
        return Place("tool", first)

    def _outside_tools(self, cause: Place | None) -> Place:
        """Return the part in which the difference stands if it is not in the tools."""
        count = len(self._new.conversation.messages)
        if cause is not None and cause.kind == "message":
            before = self._rendered_before(cause.index)
            if before is None or self._at >= self._end(before):
                return cause if cause.index < count else Place("generation_prompt")
            return self._message(before)
        if self._at >= self._end(count - 1):
            return Place("generation_prompt")
        return self._message(count - 1)

    def _rendered_before(self, index: int) -> int | None:
        """Return the message before one; some templates render the first message in the last one."""
        if index == 1 and len(self._new.conversation.messages) > 1 and self._end(0) > self._end(1):
            return None
        return index - 1 if index else None

    def _message(self, last: int) -> Place:
        """Return the message in which the difference stands, which is not behind the message `last`."""
        first = 0
        while first < last:
            middle = (first + last) // 2
            if self._at < self._end(middle):
                last = middle
            else:
                first = middle + 1
        if first == 0 and self._at < self._begin_of_first():
            moved = len(self._new.conversation.messages) > 1 and self._at < self._end(1) < self._end(0)
            return Place("message", 1) if moved else Place("template")
        return Place("message", first)

    def _end(self, index: int) -> int:
        """Return the position behind the content of a message in the new text, 0 if it is not rendered."""
        if index not in self._ends:
            self._ends[index] = self._find_end(index)
        return self._ends[index]

    def _find_end(self, index: int) -> int:
        for place in range(index, -1, -1):
            text = self._marked(place, at_end=True)
            if text is not None and text != self._new.text:
                return len(self._new.text) - common_suffix(self._new.text, text)
        return 0

    def _begin_of_first(self) -> int:
        """Return the position of the first message's content in the new text."""
        text = self._marked(0, at_end=False)
        return 0 if text is None else common_prefix(self._new.text, text)

    def _end_of_tool(self, index: int) -> int:
        """Return the position behind the description of a tool in the new text, 0 if it is not rendered."""
        tools = list(self._new.conversation.tools)
        tools[index] = written(marked_tool(json.loads(tools[index])))
        text = self._rendered(replace(self._new.conversation, tools=tuple(tools)))
        return 0 if text is None else len(self._new.text) - common_suffix(self._new.text, text)

    def _marked(self, index: int, *, at_end: bool) -> str | None:
        messages = list(self._new.conversation.messages)
        messages[index] = written(marked(json.loads(messages[index]), at_end=at_end))
        return self._rendered(replace(self._new.conversation, messages=tuple(messages)))

    def _rendered(self, conversation: Conversation) -> str | None:
        if not self._left:
            raise _TooManyError
        self._left -= 1
        try:
            return self._render(conversation)
        except FerrumError:
            return None


def _changes(old: Conversation, new: Conversation) -> list[Place]:
    """Return what differs, in the order in which templates render it; the rest of a longer list is one change."""
    found = []
    for named, other in ((dict(old.variables), dict(new.variables)), (dict(old.flags), dict(new.flags))):
        names = [name for name in {**named, **other} if named.get(name) != other.get(name)]
        found.append([Place("variable", name=name) for name in names])
    variables, flags = found
    tools = [Place("tool", place) for place in _changed(old.tools, new.tools)]
    messages = [Place("message", place) for place in _changed(old.messages, new.messages)]
    return [*variables, *tools, *messages, *flags]


def _changed(old: Sequence[str], new: Sequence[str]) -> list[int]:
    both = min(len(old), len(new))
    more = range(both, len(new)) if len(new) > both else range(both, both + (len(old) > both))
    return [*(place for place in range(both) if old[place] != new[place]), *more]


def _with(old: Conversation, new: Conversation, changes: Sequence[Place]) -> Conversation:
    """Return the old conversation with some of its changes."""
    names = {change.name for change in changes if change.kind == "variable"}
    return Conversation(
        _mixed(old.messages, new.messages, {change.index for change in changes if change.kind == "message"}),
        _mixed(old.tools, new.tools, {change.index for change in changes if change.kind == "tool"}),
        _mixed_names(old.variables, new.variables, names),
        _mixed_names(old.flags, new.flags, names),
    )


def _mixed(old: Sequence[str], new: Sequence[str], changed: set[int]) -> tuple[str, ...]:
    mixed = [new[place] if place in changed and place < len(new) else each for place, each in enumerate(old)]
    if len(new) in changed and len(old) > len(new):
        del mixed[len(new) :]
    return (*mixed, *(new[place] for place in range(len(old), len(new)) if place in changed))


def _mixed_names(
    old: Sequence[tuple[str, str]], new: Sequence[tuple[str, str]], changed: set[str]
) -> tuple[tuple[str, str], ...]:
    kept = {name: value for name, value in old if name not in changed}
    return tuple({**kept, **{name: value for name, value in new if name in changed}}.items())


# Marks, which show where messages and tools stand in a rendered prompt


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
