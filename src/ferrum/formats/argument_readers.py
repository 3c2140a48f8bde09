"""Steps that read the arguments of a call and pass them on as JSON text: JSON, tagged values, and literals.

A step returns whether the arguments were complete. Malformed text never ends a step with an error. Nested literals are
kept on a stack, so that no text exhausts Python's.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Final

from ferrum.core.output_format import Arguments, Calls, ValueStyle
from ferrum.formats.argument_types import STRING, ArgumentTypes, Types, typed_json
from ferrum.formats.json_text import escaped, loaded
from ferrum.formats.patterns import (
    SPACE,
    Choice,
    Markers,
    Pattern,
    Reader,
    Sink,
    Steps,
    choice,
    choose,
    is_mark,
    peek,
    space,
    until,
)

_OUTSIDE: Final = re.compile('["{}\\[\\]\ud800-\udfff]')
_INSIDE: Final = re.compile('["\\\\\ud800-\udfff]')
_SCALAR_END: Final = re.compile('[,}\\]\\s"{\\[\ud800-\udfff]')


def json_value(reader: Reader, sink: Sink, breaks: frozenset[str]) -> Steps[bool]:
    """Pass on one value of JSON, which begins here, as it is written.

    Only brackets and quotes count, so that malformed JSON is passed on, too. A marker ends it; in a string only the
    markers of special tokens do.
    """
    first = yield from peek(reader)
    if not first or first not in '"{[':
        return (yield from _scalar(reader, sink))
    depth, inside, escape = 0, False, False
    while True:
        text, at = reader.text, reader.at
        while at < len(text):
            if escape:
                escape = is_mark(text[at])
                at += not escape
            found = (_INSIDE if inside else _OUTSIDE).search(text, at)
            if found is None:
                at = len(text)
                break
            char, at = found.group(), found.end()
            if char == "\\":
                escape = True
            elif char == '"':
                inside = not inside
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
            elif not inside or char in breaks:
                sink(reader.take(found.start()))
                return False
            else:
                escape = False
            if depth <= 0 and not inside and char in '"}]':
                sink(reader.take(at))
                return True
        if at > reader.at:
            sink(reader.take(at))
        if reader.ended:
            reader.starved = True
            return False
        yield


def _scalar(reader: Reader, sink: Sink) -> Steps[bool]:
    parts: list[str] = []
    while True:
        found = _SCALAR_END.search(reader.text, reader.at)
        parts.append(reader.take(found.start() if found else len(reader.text)))
        if found or reader.ended:
            reader.starved = found is None
            break
        yield
    sink("".join(parts))
    return any(parts) and not reader.is_cut


class _Trailing:
    """Passes text on, but not the white space that the template writes after it."""

    def __init__(self, space_after: str, sink: Sink) -> None:
        self._space = space_after
        self._sink = sink
        self._held = ""

    def add(self, text: str) -> None:
        """Pass on the text up to what may be the last white space."""
        text = self._held + text
        sizes = range(min(len(self._space), len(text)), 0, -1)
        kept = next((size for size in sizes if text.endswith(self._space[:size])), 0)
        self._held = text[len(text) - kept :]
        if kept < len(text):
            self._sink(text[: len(text) - kept])

    def finish(self) -> None:
        """Pass on what was held back, unless it is the template's white space."""
        if self._held and self._held != self._space:
            self._sink(self._held)


@dataclass(frozen=True, slots=True)
class TaggedPlan:
    """What reads tagged arguments, derived from a format.

    Attributes:
        begin: a key opens (0), or the call closes.
        key_end, mark_end, value_end: end a key, the mark of its type, and a value, which the call ends, too.
        before, after: white space that the template writes around a value.
        raw_open, raw_close: see `Arguments`; None without.
        between: see `Arguments`; None if it is white space.
    """

    begin: Choice
    key_end: Choice
    mark_end: Choice | None
    value_end: Choice
    value_open: Choice | None
    before: str
    after: str
    raw_open: Choice | None
    raw_close: Choice | None
    between: Choice | None


def leading(text: str) -> str:
    """Return the white space that a text begins with."""
    return text[: len(text) - len(text.lstrip(SPACE))]


def trailing(text: str) -> str:
    """Return the white space that a text ends with."""
    return text[len(text.rstrip(SPACE)) :]


def tagged_plan(calls: Calls, markers: Markers) -> TaggedPlan:
    """Return the plan of a format's tagged arguments."""
    arguments = calls.arguments
    closes = [*markers.words(calls.close), *markers.words(calls.section_close)]
    key_open = markers.pattern(arguments.key_open)
    value_close = markers.pattern(arguments.value_close)
    if not any(is_mark(char) for each in value_close.segments for char in each):
        # Text of a value may hold the closing tag; the tag counts if an argument or the end of the call follows.
        next_key = Pattern((*markers.pattern(arguments.between).segments, *key_open.segments))
        value_close = Pattern(value_close.segments, (next_key, *closes))
    marked = [Pattern((), (each,)) for each in closes if is_mark(each.segments[0][0])]
    value_open = markers.pattern(arguments.value_open)
    has_mark = bool(arguments.string_mark)
    opens = choice([value_open]) if value_open.segments else None
    raw_open = markers.pattern(arguments.raw_open)
    raw_close = Pattern((*markers.pattern(arguments.raw_close).segments, *value_close.segments), value_close.follow)
    between = markers.pattern(arguments.between)
    return TaggedPlan(
        begin=choice([key_open, *closes]),
        key_end=choice([markers.pattern(arguments.key_close)], markers.breaks),
        mark_end=opens if has_mark else None,
        value_open=None if has_mark else opens,
        value_end=choice([value_close, *marked], markers.breaks - {each[0] for each in value_close.segments}),
        before=trailing(arguments.value_open or arguments.key_close),
        after=leading(arguments.value_close),
        raw_open=choice([raw_open]) if raw_open.segments else None,
        raw_close=choice([raw_close, *marked]) if raw_open.segments else None,
        between=choice([between]) if between.segments else None,
    )


def tagged_arguments(
    reader: Reader, sink: Sink, plan: TaggedPlan, arguments: Arguments, types: ArgumentTypes, markers: Markers
) -> Steps[bool]:
    """Pass on tagged arguments as a JSON object."""
    sink("{")
    separator = ""
    while True:
        yield from space(reader)
        if separator and plan.between is not None:
            yield from choose(reader, plan.between)
            yield from space(reader)
        index = yield from choose(reader, plan.begin)
        if index:
            if index > 0:
                sink("}")
            return index > 0
        key: list[str] = []
        if (yield from until(reader, plan.key_end, key.append)) < 0:
            return False
        name = markers.visible("".join(key)).strip(SPACE)
        name = name if name in types.names else name.strip('"')
        sink(f"{separator}{json.dumps(name, ensure_ascii=False)}: ")
        separator = ", "
        allowed = types.get(name)
        if plan.mark_end is not None:
            mark: list[str] = []
            if (yield from until(reader, plan.mark_end, mark.append)) < 0:
                return False
            is_string = "".join(mark).strip(SPACE) == arguments.string_mark
            allowed = STRING if is_string else None if allowed == STRING else allowed
        if not (yield from _tagged_value(reader, sink, plan, arguments.values, allowed, markers)):
            return False


def _tagged_value(
    reader: Reader, sink: Sink, plan: TaggedPlan, values: ValueStyle, types: Types, markers: Markers
) -> Steps[bool]:
    """Pass on one value: a string as it arrives, another when it is complete."""
    if plan.value_open is not None:
        yield from space(reader)
        yield from choose(reader, plan.value_open)
    yield from _read_exactly(reader, plan.before)
    end = plan.value_end
    if plan.raw_open is not None and plan.raw_close is not None and (yield from choose(reader, plan.raw_open)) == 0:
        types, end = STRING, plan.raw_close
    if types == STRING and values is ValueStyle.RAW:
        sink('"')
        text = _Trailing(plan.after, lambda piece: sink(escaped(markers.visible(piece))))
        index = yield from until(reader, end, text.add)
        if index >= 0:
            text.finish()
            sink('"')
        return index >= 0
    pieces: list[str] = []
    text = _Trailing(plan.after, pieces.append)
    index = yield from until(reader, end, text.add)
    text.finish()
    value = markers.visible("".join(pieces))
    json_types = None if values is ValueStyle.JSON else types
    sink(typed_json(value, json_types) if index >= 0 or (value and not reader.cut) else "")
    return index >= 0


def _read_exactly(reader: Reader, text: str) -> Steps[None]:
    """Read a text if it comes next."""
    while text.startswith(reader.text[reader.at : reader.at + len(text)]):
        if reader.text.startswith(text, reader.at):
            reader.take(reader.at + len(text))
            return
        if reader.ended:
            return
        yield


# Gemma's objects and Python's keyword arguments

_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_KEY_END: Final = re.compile("[:=,(){}\\[\\]\ud800-\udfff]")
_BARE_END: Final = re.compile("[,(){}\\[\\]\ud800-\udfff]")
_OPEN: Final = {"{": "{", "(": "[", "[": "["}
_CLOSED: Final = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class QuotePlan:
    """What finds a format's quotes around strings: the opening and the closing one."""

    open: Choice
    close: Choice


def quote_plan(quote: str, markers: Markers) -> QuotePlan | None:
    """Return the plan of a format's quotes; None without any."""
    pattern = markers.pattern(quote)
    if not pattern.segments:
        return None
    closing = pattern
    if not any(map(is_mark, pattern.segments[0])):
        # Text of a string may hold the quote; it counts if the string can end there.
        closing = Pattern(pattern.segments, tuple(Pattern((each,)) for each in ",}]"))
    return QuotePlan(choice([pattern]), choice([closing], markers.breaks - set(pattern.segments[0])))


class LiteralReader:
    """The state of a call's arguments.

    Args:
        sink: takes JSON text.
        quote: what surrounds strings, besides quotation marks.
    """

    def __init__(self, reader: Reader, sink: Sink, quote: QuotePlan | None, markers: Markers) -> None:
        self._reader = reader
        self._sink = sink
        self._quote = quote
        self._markers = markers
        self._stack: list[str] = []
        self._filled: list[bool] = []

    def read(self) -> Steps[bool]:
        """Read arguments that begin after their opening bracket."""
        self._push("{")
        while self._stack:
            yield from space(self._reader)
            char = yield from peek(self._reader)
            if not char or (is_mark(char) and not self._quotes(char)):
                return False
            if char in "})]":
                self._reader.take(self._reader.at + 1)
                self._sink(_CLOSED[self._stack.pop()])
                self._filled.pop()
            elif char in ",:=;":
                self._reader.take(self._reader.at + 1)
            elif self._stack[-1] == "[":
                self._separate()
                yield from self._value(char)
            elif not (yield from self._item(char)):
                return False
        return True

    def _push(self, kind: str) -> None:
        self._sink(kind)
        self._stack.append(kind)
        self._filled.append(False)

    def _separate(self) -> None:
        if self._filled[-1]:
            self._sink(", ")
        self._filled[-1] = True

    def _quotes(self, char: str) -> bool:
        return self._quote is not None and char in self._quote.open.patterns[0].firsts

    def _item(self, char: str) -> Steps[bool]:
        """Read a key and its value."""
        key: list[str] = []
        if not (yield from self._string(char, key.append)):
            key.append(json.dumps((yield from self._bare(_KEY_END))))
        if self._reader.is_cut:
            return False
        self._separate()
        self._sink("".join(key) + ": ")
        yield from space(self._reader)
        after = yield from peek(self._reader)
        if after and after in ":=":
            self._reader.take(self._reader.at + 1)
            yield from space(self._reader)
            after = yield from peek(self._reader)
        if not after or after in ",})]":
            self._sink("null" if after else "")
            return bool(after)
        yield from self._value(after)
        return True

    def _value(self, char: str) -> Steps[None]:
        """Read a value; of a container the opening bracket."""
        if char in _OPEN:
            self._reader.take(self._reader.at + 1)
            self._push(_OPEN[char])
        elif not (yield from self._string(char, self._sink)):
            word = yield from self._bare(_BARE_END)
            self._sink("" if self._reader.is_cut else _bare_json(word))

    def _bare(self, end: re.Pattern[str]) -> Steps[str]:
        """Read text without quotes."""
        parts: list[str] = []
        while True:
            found = end.search(self._reader.text, self._reader.at)
            parts.append(self._reader.take(found.start() if found else len(self._reader.text)))
            if found or self._reader.ended:
                break
            yield
        if not any(parts) and self._reader.at < len(self._reader.text):
            parts.append(self._reader.take(self._reader.at + 1))
        return self._markers.visible("".join(parts)).strip(SPACE)

    def _string(self, char: str, sink: Sink) -> Steps[bool]:
        """Read a string as JSON text, if one comes next."""
        if self._quotes(char) and self._quote is not None and (yield from choose(self._reader, self._quote.open)) >= 0:
            sink('"')
            if (yield from until(self._reader, self._quote.close, lambda text: sink(self._shown(text)))) >= 0:
                sink('"')
            return True
        if char not in "\"'":
            return False
        self._reader.take(self._reader.at + 1)
        sink('"')
        yield from self._quoted(char, sink)
        return True

    def _shown(self, text: str) -> str:
        return escaped(self._markers.visible(text))

    def _quoted(self, quote: str, sink: Sink) -> Steps[None]:
        """Read the rest of a string between quotation marks."""
        reader = self._reader
        breaks = self._markers.breaks
        stop = re.compile(f"[{quote}\\\\{''.join(sorted(breaks))}]")
        while True:
            found = stop.search(reader.text, reader.at)
            if found is None or found.start() > reader.at:
                sink(self._shown(reader.take(found.start() if found else len(reader.text))))
            if found is None:
                if reader.ended:
                    return
                yield
            elif found.group() == "\\":
                reader.take(reader.at + 1)
                sink((yield from self._escape()))
            elif found.group() == quote:
                reader.take(reader.at + 1)
                sink('"')
                return
            else:
                return

    def _escape(self) -> Steps[str]:
        """Read the rest of an escape and return it as JSON text."""
        char = yield from peek(self._reader)
        if not char or is_mark(char):
            return escaped("\\")
        self._reader.take(self._reader.at + 1)
        if char not in _DIGITS:
            return escaped(_ESCAPES.get(char, char if char in "\\'\"/" else f"\\{char}"))
        digits = ""
        while len(digits) < _DIGITS[char]:
            digit = yield from peek(self._reader)
            if not digit or digit not in "0123456789abcdefABCDEF":
                break
            digits += self._reader.take(self._reader.at + 1)
        code = int(digits or "0", 16)
        if len(digits) < _DIGITS[char] or code > 0x10FFFF:
            return escaped(f"\\{char}{digits}")
        return f"\\u{code:04x}" if code < 0x10000 else escaped(chr(code))


def _bare_json(text: str) -> str:
    """Return a word as JSON text: a number or a constant, else a string."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        value = loaded(text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(text)
    return text
