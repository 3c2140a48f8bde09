"""Markers of a format in the characters of a parser, and the steps that find them in text that arrives in pieces.

Tokens of the vocabulary become characters of their own: UTF-8 never decodes to a lone surrogate, so a surrogate stands
for a marker's token, and a marker is a text to find. A guide finds markers by their exact bytes instead: see
`guides.guide_state`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from ferrum.core.output_format import Header, OutputFormat
from ferrum.text.tokenizer import Tokenizer, encode_middle

NO: Final = -1
MORE: Final = -2
"""What `Pattern.match` returns if the text does not match, and if more text decides."""

SPACE: Final = " \t\r\n"
_MAX_SPACE: Final = 16
"""Characters of white space within a marker; more is text."""

_MAX_WORDS: Final = 128
"""Characters of words in a header; more is text."""

_FIRST_MARK: Final = 0xD800
_MARKS: Final = re.compile("[\ud800-\udfff]")
_WORDS: Final = re.compile("[^\n\r<>{}\ud800-\udfff]*")
_PIECES: Final = re.compile("<[^<>\n]{1,60}>|\\[[^\\[\\]\\s]{1,60}\\]|[|\uff5c][^|\uff5c\\s]{1,60}[|\uff5c]")
"""What may be one token of a marker's text."""


@dataclass(frozen=True, slots=True)
class Words:
    """Words of a header that may stand before a segment of a marker.

    Attributes:
        place: index of the segment.
        marks: texts that may stand among the words.
        apart: white space or a mark separates them from what precedes.
        without: a text that they do not have; empty: none.
    """

    place: int
    marks: tuple[str, ...]
    apart: bool
    without: str = ""

    def skip(self, text: str, at: int, segment: str) -> int:
        """Return where the segment after the words begins, NO, or MORE."""
        end = text.find(segment, at, at + _MAX_WORDS + len(segment))
        words = text[at : end if end >= 0 else at + _MAX_WORDS]
        for mark in self.marks:
            words = words.replace(mark, " ")
        begun = words.rfind("<") if end < 0 else -1
        if begun >= 0 and any(each.startswith(words[begun:]) for each in (segment, *self.marks)):
            words = words[:begun]
        apart = not self.apart or words[:1] in ("", " ")
        if not apart or not _WORDS.fullmatch(words) or (self.without and self.without in words):
            return NO
        return end if end >= 0 else MORE if len(text) - at < _MAX_WORDS else NO


@dataclass(frozen=True, slots=True)
class Pattern:
    """A marker: segments with any white space between them.

    Attributes:
        segments: texts without white space.
        follow: if not empty, one of these must come next; it is not part of the match.
        words: what may stand in place of white space before one of the segments, or before what follows.
    """

    segments: tuple[str, ...]
    follow: tuple[Pattern, ...] = ()
    words: Words | None = None

    def match(self, text: str, at: int, ended: bool) -> int:
        """Return where a match that begins at `at` ends, NO, or MORE."""
        for index, segment in enumerate(self.segments):
            if self.words is not None and index == self.words.place:
                at = self.words.skip(text, at, segment)
            elif index:
                at = _after_space(text, at)
            if at < 0:
                return at
            if text.startswith(segment, at):
                at += len(segment)
            else:
                return MORE if segment.startswith(text[at : at + len(segment)]) else NO
        if self.words is not None and self.words.place == len(self.segments):
            at = self.words.skip(text, at, self.follow[0].segments[0])
        return at if not self.follow or at < 0 else self._followed(text, at, ended)

    def _followed(self, text: str, at: int, ended: bool) -> int:
        start = _after_space(text, at)
        if start == MORE or start == len(text):
            return at if ended else MORE
        if start == NO:
            return NO
        results = [each.match(text, start, ended) for each in self.follow]
        if max(results) >= 0:
            return at
        return MORE if MORE in results and not ended else NO

    @property
    def firsts(self) -> frozenset[str]:
        """The characters that it may begin with."""
        if self.segments:
            return frozenset(self.segments[0][0])
        return frozenset().union(*(each.firsts for each in self.follow))


def _after_space(text: str, at: int) -> int:
    start = at
    while at < len(text) and text[at] in SPACE:
        at += 1
        if at - start > _MAX_SPACE:
            return NO
    return at


@dataclass(frozen=True, slots=True)
class Choice:
    """Several patterns, of which the longest that matches counts.

    Attributes:
        first: finds a character that one may begin with, or that breaks.
        breaks: characters that end a text although no pattern begins with them.
    """

    patterns: tuple[Pattern, ...]
    first: re.Pattern[str]
    breaks: frozenset[str] = frozenset()


def choice(patterns: Iterable[Pattern], breaks: Iterable[str] = ()) -> Choice:
    """Return a choice of patterns."""
    found, broken = tuple(patterns), frozenset(breaks)
    firsts = broken.union(*(each.firsts for each in found))
    inside = "".join(rf"\u{ord(each):04x}" if ord(each) < 1 << 16 else each for each in sorted(firsts))
    return Choice(found, re.compile(f"[{inside}]" if firsts else r"(?!)"), broken)


@dataclass(frozen=True, slots=True)
class Markers:
    """The markers of a format in one vocabulary.

    Attributes:
        chars: characters of the tokens that are markers or parts of them.
        shown: by code point, what such a character adds to a text: the token's text, or nothing for a special token,
            as when decoding.
        special: the vocabulary's special tokens.
        tokens: by text.
        plans: what parsers derive from the format, by their own keys.
    """

    chars: Mapping[int, str]
    shown: Mapping[int, str]
    special: frozenset[int]
    tokens: Mapping[str, int]
    plans: dict[object, object] = field(default_factory=dict)

    def translated(self, text: str) -> str:
        """Return a text of the format with its tokens as characters."""
        for token_text in sorted(self.tokens, key=len, reverse=True):
            text = text.replace(token_text, self.chars[self.tokens[token_text]])
        return text

    def pattern(self, text: str, *, follow: tuple[Pattern, ...] = ()) -> Pattern:
        """Return the pattern of a text of the format.

        There may be white space next to tokens: some vocabularies put a space before text.
        """
        return Pattern(tuple(_MARKS.sub(r" \g<0> ", self.translated(text)).split()), follow)

    def header(self, header: Header, before: str, after: str, *, without: str = "") -> Pattern:
        """Return the pattern of a header's begin and another text of it, with words between them.

        Args:
            without: a text that the words do not have.
        """
        head, tail = self.pattern(before).segments, self.pattern(after).segments
        marks = tuple(map(self.translated, header.marks if before else (header.open, *header.marks)))
        apart = before.strip() != header.open
        return Pattern((*head, *tail), words=Words(len(head), marks, apart, without))

    def recipient(self, header: Header, without: str) -> Pattern:
        """Return the pattern of a recipient before a header opens, other than those that begin with `without`."""
        words = Words(1, (), False, without.removeprefix(header.recipient))
        return Pattern((header.recipient,), (self.pattern(header.open),), words)

    def words(self, text: str) -> tuple[Pattern, ...]:
        """Return patterns of the parts of a text between white space."""
        return tuple(map(self.pattern, text.split()))

    def visible(self, text: str) -> str:
        """Return text without the characters that stand for tokens."""
        return text.translate(self.shown) if _MARKS.search(text) else text

    @property
    def breaks(self) -> frozenset[str]:
        """The characters of special tokens."""
        return frozenset(char for token, char in self.chars.items() if token in self.special)


NO_MARKERS: Final = Markers({}, {}, frozenset(), {})
"""Those of a grammar without a vocabulary."""


def is_mark(char: str) -> bool:
    """Return whether a character stands for a token."""
    return bool(_MARKS.match(char))


def format_texts(form: OutputFormat) -> Iterator[str]:
    """Yield the texts of a format that may hold markers."""
    yield from (form.content_open, form.content_close, form.prefix, *form.content_aliases, *form.ignored)
    if form.reasoning is not None:
        yield from (form.reasoning.open, form.reasoning.close)
    if form.header is not None:
        yield from (form.header.open, form.header.close, *form.header.marks)
    if form.calls is None:
        return
    calls = form.calls
    yield from (calls.section_open, calls.section_close, calls.open, calls.close, calls.after_name, calls.between)
    yield from (calls.id_separator, *calls.aliases, *calls.after_name_aliases)
    arguments = calls.arguments
    yield from (arguments.key_open, arguments.key_close, arguments.value_open, arguments.value_close)
    yield from (arguments.between, arguments.quote, arguments.raw_open, arguments.raw_close)


def token_of(text: str, tokenizer: Tokenizer) -> int | None:
    """Return the one token that spells a text, or None."""
    ids = encode_middle(tokenizer, text)
    return ids[0] if len(ids) == 1 and tokenizer.token_bytes(ids[0]) == text.encode() else None


def _tokens(text: str, tokenizer: Tokenizer) -> Iterator[tuple[str, int]]:
    """Yield the tokens among the pieces of a text."""
    for piece in _PIECES.findall(text):
        token = token_of(piece, tokenizer)
        if token is not None:
            yield piece, token
        elif piece[0] in "<[":
            yield from _tokens(piece[1:], tokenizer)


_found: WeakKeyDictionary[Tokenizer, dict[OutputFormat, Markers]] = WeakKeyDictionary()


def markers_of(form: OutputFormat, tokenizer: Tokenizer) -> Markers:
    """Return the markers of a format in a vocabulary; they are found once."""
    known = _found.setdefault(tokenizer, {})
    if form not in known:
        tokens = dict(pair for text in format_texts(form) for pair in _tokens(text, tokenizer))
        special = tokenizer.special_ids
        chars = {token: chr(_FIRST_MARK + index) for index, token in enumerate(tokens.values())}
        shown = {ord(chars[token]): "" if token in special else text for text, token in tokens.items()}
        known[form] = Markers(chars, shown, special, tokens)
    return known[form]


# Steps: they read text that arrives in pieces, up to patterns.
#
# A step is a generator that yields while it waits. What it does depends on the text alone, not on its pieces.

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
