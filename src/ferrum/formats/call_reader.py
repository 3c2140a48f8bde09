"""Steps that read one tool call. Text that is no call is left to the caller, which knows what was read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ferrum.core.output_format import ArgumentStyle, Calls, CallStyle, Header, IdPlace, Tool, ToolKind
from ferrum.formats.argument_readers import (
    LiteralReader,
    QuotePlan,
    TaggedPlan,
    json_value,
    quote_plan,
    tagged_arguments,
    tagged_plan,
)
from ferrum.formats.argument_types import argument_types
from ferrum.formats.json_text import InputText, StringText
from ferrum.formats.output_parts import Part, PartKind, id_text
from ferrum.formats.patterns import Choice, Markers, Reader, Sink, Steps, choice, choose, peek, space

_ID: Final = re.compile(r"[\w.-]*")
_MAX_ID: Final = 128
_GOOD_ID: Final = re.compile(r"[a-zA-Z0-9]{9}|[\w.-]+:[0-9]{1,4}")
"""An id that templates accept in histories. Mistral's raise for others; Kimi's models expect a name and a number."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The markers within calls; None if the format has none.

    Attributes:
        open: before a call of a section.
        close: each part of what ends a call.
        after: after a call of a section: the section closes (0), or another call follows.
        after_name: between the name and arguments.
        id_separator: between id and name.
        tagged, quote: see `tagged_plan` and `quote_plan`.
    """

    open: Choice | None
    close: tuple[Choice, ...]
    after: Choice | None
    after_name: Choice | None
    id_separator: Choice | None
    tagged: TaggedPlan | None
    quote: QuotePlan | None


def call_plan(calls: Calls, markers: Markers, header: Header | None = None) -> CallPlan:
    """Return the markers within a format's calls; `header` is that of the format."""

    def one(*texts: str) -> Choice | None:
        patterns = [markers.pattern(text) for text in texts if text.strip()]
        return choice(patterns) if patterns else None

    after_name = one(calls.after_name, *calls.after_name_aliases)
    if header is not None and calls.after_name.endswith(header.close):
        after_name = choice([markers.header(header, "", header.close)])
    tagged = calls.arguments.style is ArgumentStyle.TAGGED and calls.style is CallStyle.NAMED
    return CallPlan(
        open=one(calls.open),
        close=tuple(choice([each]) for each in markers.words(calls.close)),
        after=one(calls.section_close, calls.between) if calls.section_close.strip() else None,
        after_name=after_name,
        id_separator=one(calls.id_separator),
        tagged=tagged_plan(calls, markers) if tagged else None,
        quote=quote_plan(calls.arguments.quote, markers) if calls.arguments.style is ArgumentStyle.GEMMA else None,
    )


class Names:
    """The names of a request's tools, as a format spells them, and their beginnings."""

    def __init__(self, tools: tuple[Tool, ...], style: CallStyle) -> None:
        self.tools = {tool.name: tool for tool in tools}
        spelled = {tool.name: tool for tool in tools}
        if style is CallStyle.OBJECT:
            spelled = {json.dumps(tool.name, ensure_ascii=form)[1:-1]: tool for tool in tools for form in (True, False)}
        self.spelled: Mapping[str, Tool] = spelled
        self.beginnings = frozenset(name[:size] for name in spelled for size in range(1, len(name) + 1))


class CallReader:
    """Reads calls and emits their parts.

    Args:
        begun: is called before the first part of a call.

    Attributes:
        doubtful: the object that was read last has keys that calls have not.
    """

    def __init__(
        self,
        reader: Reader,
        calls: Calls,
        plan: CallPlan,
        markers: Markers,
        names: Names,
        emit: Callable[[Part], None],
        begun: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._calls = calls
        self._plan = plan
        self._markers = markers
        self._breaks = markers.breaks
        self._names = names
        self._emit = emit
        self._begun = begun
        self._input: InputText | None = None
        self._keys = (calls.name_key, calls.arguments_key, *calls.first_keys, *calls.extra_keys)
        self.doubtful = False

    def read(self, opened: bool) -> Steps[bool]:
        """Read a call and return whether it was one; `opened`: its opening text was read."""
        yield from space(self._reader)
        if not opened and self._plan.open is not None and (yield from choose(self._reader, self._plan.open)) < 0:
            return False
        yield from space(self._reader)
        if self._calls.style is CallStyle.OBJECT:
            found = yield from self._object()
        elif self._calls.style is CallStyle.NAMED:
            found = yield from self._named()
        else:
            found = yield from self._pythonic()
        if found:
            yield from self._close()
        return found

    def _close(self) -> Steps[None]:
        for part in self._plan.close:
            yield from space(self._reader)
            yield from choose(self._reader, part)

    def _begin(self, tool: Tool, call_id: str = "") -> None:
        self._begun()
        self._emit(Part(PartKind.CALL, tool.name, call_id))
        self._input = InputText() if tool.kind is ToolKind.CUSTOM else None

    def _argument(self, text: str) -> None:
        """Emit text of arguments."""
        text = self._markers.visible(text)
        if self._input is not None:
            text = self._input.feed(text)
        if text:
            self._emit(Part(PartKind.ARGUMENTS, text))

    def _end(self, *, complete: bool) -> None:
        """End a call, unless the output was cut in its arguments."""
        if not complete and self._reader.is_cut:
            return
        if self._input is not None and (text := self._input.finish()):
            self._emit(Part(PartKind.ARGUMENTS, text))
        self._emit(Part(PartKind.END))

    def _name(self) -> Steps[Tool | None]:
        """Read the longest text that begins a tool's name."""
        found = ""
        while True:
            char = yield from peek(self._reader)
            if not char or found + char not in self._names.beginnings:
                return self._names.spelled.get(found)
            found += self._reader.take(self._reader.at + 1)

    def _id(self) -> Steps[str]:
        found = ""
        while len(found) < _MAX_ID:
            word = _ID.match(self._reader.text, self._reader.at)
            assert word is not None
            found += self._reader.take(word.end())
            if self._reader.at < len(self._reader.text) or self._reader.ended:
                break
            yield
        return found

    def _named(self) -> Steps[bool]:
        call_id = ""
        if self._calls.id_place is IdPlace.BEFORE and self._plan.id_separator is not None:
            call_id = yield from self._id()
            if (yield from choose(self._reader, self._plan.id_separator)) < 0:
                return False
            yield from space(self._reader)
        tool = yield from self._name()
        if tool is None:
            return False
        if self._calls.id_place is IdPlace.AFTER and self._plan.id_separator is not None:
            yield from space(self._reader)
            if (yield from choose(self._reader, self._plan.id_separator)) >= 0:
                call_id = id_text(self._calls, tool.name, (yield from self._id()))
        if self._plan.after_name is not None and not (yield from self._after_name(self._plan.after_name)):
            return False
        yield from space(self._reader)
        return (yield from self._named_arguments(tool, call_id if _GOOD_ID.fullmatch(call_id) else ""))

    def _after_name(self, after_name: Choice) -> Steps[bool]:
        """Read what stands between name and arguments: words of a header begin with white space."""
        if (yield from choose(self._reader, after_name)) >= 0:
            return True
        yield from space(self._reader)
        return (yield from choose(self._reader, after_name)) >= 0

    def _named_arguments(self, tool: Tool, call_id: str) -> Steps[bool]:
        reader, style = self._reader, self._calls.arguments.style
        char = yield from peek(reader)
        if style is ArgumentStyle.TAGGED and self._plan.tagged is not None:
            if not char or char not in {first for each in self._plan.tagged.begin.patterns for first in each.firsts}:
                return False
            self._begin(tool, call_id)
            types = argument_types(tool)
            plan, arguments = self._plan.tagged, self._calls.arguments
            complete = yield from tagged_arguments(reader, self._argument, plan, arguments, types, self._markers)
        elif char == "{":
            self._begin(tool, call_id)
            if style is ArgumentStyle.GEMMA:
                reader.take(reader.at + 1)
                complete = yield from LiteralReader(reader, self._argument, self._plan.quote, self._markers).read()
            else:
                complete = yield from json_value(reader, self._argument, self._breaks)
        elif self._plan.close and (yield from choose(reader, self._plan.close[0])) >= 0:
            self._begin(tool, call_id)
            self._argument("{}")
            complete = True
        else:
            return False
        self._end(complete=complete)
        return True

    def _pythonic(self) -> Steps[bool]:
        tool = yield from self._name()
        if tool is None:
            return False
        yield from space(self._reader)
        if (yield from peek(self._reader)) != "(":
            return False
        self._reader.take(self._reader.at + 1)
        self._begin(tool)
        complete = yield from LiteralReader(self._reader, self._argument, None, self._markers).read()
        self._end(complete=complete)
        return True

    def _object(self) -> Steps[bool]:
        """Read an object with name and arguments, in any order, and other keys."""
        reader = self._reader
        if (yield from peek(reader)) != "{":
            return False
        reader.take(reader.at + 1)
        tool: Tool | None = None
        begun = complete = self.doubtful = False
        held: list[str] = []
        while True:
            yield from space(reader)
            char = yield from peek(reader)
            if char and char in "},":
                reader.take(reader.at + 1)
                if char == "}":
                    break
                continue
            key = (yield from self._key()) if char == '"' else None
            if key is None:
                break
            if key == self._calls.name_key and tool is None:
                tool = yield from self._quoted_name()
                if tool is None:
                    return False
            elif key == self._calls.arguments_key and not begun and not held:
                if tool is not None:
                    begun = True
                    self._begin(tool)
                complete = yield from self._object_arguments(self._argument if begun else held.append)
            else:
                self.doubtful = self.doubtful or (tool is None and key not in self._keys)
                yield from json_value(reader, _nothing, self._breaks)
        if tool is None or (char != "}" and not begun):
            return False
        if not begun:
            self._begin(tool)
            self._argument("".join(held) or "{}")
            complete = True
        self._end(complete=complete)
        return True

    def _key(self) -> Steps[str | None]:
        """Read a key and its colon; None if there is none."""
        parts: list[str] = []
        if not (yield from json_value(self._reader, parts.append, self._breaks)):
            begin = StringText().feed("".join(parts)[1:])[0]
            self.doubtful = self.doubtful or not any(key.startswith(begin) for key in self._keys)
            return None
        yield from space(self._reader)
        if (yield from peek(self._reader)) != ":":
            return None
        self._reader.take(self._reader.at + 1)
        yield from space(self._reader)
        return StringText().feed("".join(parts)[1:])[0]

    def _quoted_name(self) -> Steps[Tool | None]:
        if (yield from peek(self._reader)) != '"':
            return None
        self._reader.take(self._reader.at + 1)
        tool = yield from self._name()
        if tool is None or (yield from peek(self._reader)) != '"':
            return None
        self._reader.take(self._reader.at + 1)
        return tool

    def _object_arguments(self, sink: Sink) -> Steps[bool]:
        """Pass on the value of the arguments' key, and return whether it is complete.

        Some models write the object as a string of JSON.
        """
        first = yield from peek(self._reader)
        if first == '"' and self._input is None:
            text = StringText()
            self._reader.take(self._reader.at + 1)
            yield from self._string(text, sink)
            return text.ended
        if first and first in '{["':
            return (yield from json_value(self._reader, sink, self._breaks))
        parts: list[str] = []
        complete = yield from json_value(self._reader, parts.append, self._breaks)
        value = "".join(parts)
        sink("{}" if value == "null" else value)
        return complete

    def _string(self, text: StringText, sink: Sink) -> Steps[None]:
        reader = self._reader
        while True:
            rest = reader.text[reader.at :]
            stop = next((index for index, char in enumerate(rest) if char in self._breaks), len(rest))
            decoded, read = text.feed(rest[:stop])
            reader.take(reader.at + read)
            sink(decoded)
            if text.ended or stop < len(rest) or reader.ended:
                return
            yield


def _nothing(text: str) -> None:
    """Take text of a value that does not count."""
