"""Text that arrives in pieces, and the steps of a parser that waits for more of it.

A step is a generator that yields while it waits. What it does depends on the text alone, not on its pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from ferrum.formats.patterns import MORE, SPACE, Choice

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
Sink = Callable[[str], None]


class Reader:
    """The text that has arrived and was not read.

    Attributes:
        text, at: the text, and where reading goes on.
        ended: no more text arrives.
        cut: the output did not end there by itself. What may begin a marker at its end is then left out.
        starved: the last step needed more text than there is.
        left_out: text at the end was left out.
        raw: what was read since a call may have begun; None if nothing may have.
        matched: the text of the pattern that matched last.
    """

    __slots__ = ("at", "cut", "ended", "left_out", "matched", "raw", "starved", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = self.cut = self.starved = self.left_out = False
        self.raw: list[str] | None = None
        self.matched = ""

    @property
    def is_cut(self) -> bool:
        """Whether all text of an output that was cut has been read."""
        return self.cut and self.at >= len(self.text)

    def leave_out(self) -> None:
        """Read the rest of the text as the begin of something that was cut."""
        self.take(len(self.text))
        self.left_out = True

    def add(self, text: str) -> None:
        """Append text."""
        self.text = self.text[self.at :] + text if self.at < len(self.text) else text
        self.at = 0

    def take(self, end: int) -> str:
        """Return the text up to `end` and go on there."""
        text = self.text[self.at : end]
        self.at = end
        if self.raw is not None:
            self.raw.append(text)
        return text


def peek(reader: Reader) -> Steps[str]:
    """Return the next character, or an empty text at the end."""
    while reader.at >= len(reader.text):
        if reader.ended:
            reader.starved = True
            return ""
        yield
    return reader.text[reader.at]


def space(reader: Reader) -> Steps[str]:
    """Read white space."""
    found: list[str] = []
    while True:
        end = reader.at
        while end < len(reader.text) and reader.text[end] in SPACE:
            end += 1
        found.append(reader.take(end))
        if end < len(reader.text) or reader.ended:
            return "".join(found)
        yield


def choose(reader: Reader, options: Choice) -> Steps[int]:
    """Read the longest pattern that comes next and return its index, or -1.

    What may begin a longer pattern where an output was cut is left out.
    """
    while True:
        best, end, open_ = -1, -1, False
        for index, pattern in enumerate(options.patterns):
            result = pattern.match(reader.text, reader.at, reader.ended and not reader.cut)
            open_ = open_ or result == MORE
            if result > end:
                best, end = index, result
        if not open_ or reader.ended:
            break
        yield
    reader.starved = open_
    if open_ and reader.cut:
        reader.leave_out()
        return -1
    if best >= 0:
        reader.matched = reader.take(end)
    return best


def until(reader: Reader, options: Choice, sink: Sink) -> Steps[int]:
    """Pass text on to `sink` up to a pattern, read it, and return its index; -1 at the end or before a break."""
    while True:
        found = options.first.search(reader.text, reader.at)
        stop = found.start() if found else len(reader.text)
        if stop > reader.at:
            sink(reader.take(stop))
        if found is None:
            if reader.ended:
                reader.starved = True
                return -1
            yield
            continue
        index = yield from choose(reader, options)
        if index >= 0 or reader.is_cut or reader.text[reader.at] in options.breaks:
            return index
        sink(reader.take(reader.at + 1))
