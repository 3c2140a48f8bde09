"""A step that reads Gemma's objects or Python's keyword arguments, and passes them on as JSON text.

Nested values are kept on a stack, so that no text exhausts Python's. Malformed text never ends the step with an error.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Final

from ferrum.formats.json_text import escaped, loaded
from ferrum.formats.patterns import SPACE, Choice, Markers, Pattern, choice, is_mark
from ferrum.formats.reader import Reader, Sink, Steps, choose, peek, space, until

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
