"""Reader of GBNF, llama.cpp's notation of grammars: from its text to rules as trees.

Characters are code points, and `.` is any of them. What the rules become is in `gbnf_lark`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

from ferrum.core.errors import InvalidGrammar

MOST_CHARACTERS: Final = 64 * 1024
MOST_RULES: Final = 500
MOST_NESTED: Final = 60
"""Groups within each other."""

MOST_REPEATS: Final = 2000
"""Limit of a counted repetition, as llama.cpp's."""

ROOT: Final = "root"
LAST_CHAR: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_SPACE: Final = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_LINES: Final = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_OPTION: Final = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*\|")
_COUNT: Final = re.compile(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([tnr\\\"\[\]-]))")
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r"}

Range: TypeAlias = tuple[int, int]
"""The first and the last code point."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of some ranges, which are sorted and disjoint."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    """Parts one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part several times; `most` None: without a limit."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Reference:
    """The rule of a name."""

    name: str


Node: TypeAlias = Chars | Sequence | Choice | Repeat | Reference


def rules_of(text: str) -> dict[str, Node]:
    """Return the rules of a grammar by name.

    Raises:
        InvalidGrammar: the text is no GBNF or too long, a rule is not defined or defined twice, or there is no `root`.
    """
    if len(text) > MOST_CHARACTERS:
        raise InvalidGrammar(f"has {len(text)} characters, more than {MOST_CHARACTERS}")
    return _Reader(text).rules()


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly within one."""
    match node:
        case Sequence(parts) | Choice(parts):
            return parts
        case Repeat(part):
            return (part,)
    return ()


def references(node: Node) -> Iterator[str]:
    """Yield the names of rules within a node."""
    if isinstance(node, Reference):
        yield node.name
    for each in children(node):
        yield from references(each)


def chars(ranges: list[Range], *, negated: bool = False) -> Chars:
    """Return one character of some ranges, or of all others. Surrogates are no characters."""
    taken = sorted([*ranges, _SURROGATES]) if negated else sorted(ranges)
    merged: list[Range] = []
    for low, high in taken:
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    if negated:
        starts = [0, *(high + 1 for _, high in merged)]
        ends = [*(low - 1 for low, _ in merged), LAST_CHAR]
        return Chars(tuple((low, high) for low, high in zip(starts, ends, strict=True) if low <= high))
    low, high = _SURROGATES
    outside = [cut for a, b in merged for cut in ((a, min(b, low - 1)), (max(a, high + 1), b)) if cut[0] <= cut[1]]
    return Chars(tuple(dict.fromkeys(outside)))


class _Reader:
    """Reads a grammar from left to right.

    Args:
        text: of the grammar.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._uses: dict[str, int] = {}

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self._skip(_LINES)
        while self._place < len(self._text):
            name = self._rule_name()
            if name in found:
                self._refuse(f"the rule {name} is defined twice")
            found[name] = self._choice(0)
            if self._place < len(self._text) and self._text[self._place] not in "\r\n":
                self._refuse(f"{self._text[self._place]!r} is not expected")
            self._skip(_LINES)
            if len(found) > MOST_RULES:
                raise InvalidGrammar(f"has more than {MOST_RULES} rules")
        for name, place in self._uses.items():
            if name not in found:
                self._place = place
                self._refuse(f"the rule {name} is not defined")
        if ROOT not in found:
            raise InvalidGrammar(f"has no rule {ROOT}, with which GBNF begins")
        return found

    def _refuse(self, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, self._place) + 1
        raise InvalidGrammar(f"line {line}: {reason}")

    def _skip(self, space: re.Pattern[str]) -> None:
        match = space.match(self._text, self._place)
        assert match is not None  # the patterns match nothing, too
        self._place = match.end()

    def _ahead(self, text: str) -> bool:
        return self._text.startswith(text, self._place)

    def _took(self, text: str) -> bool:
        found = self._ahead(text)
        self._place += len(text) if found else 0
        return found

    def _rule_name(self) -> str:
        match = _NAME.match(self._text, self._place)
        if match is None:
            self._refuse(f"a rule begins with its name, not with {self._text[self._place]!r}")
        self._place = match.end()
        self._skip(_SPACE)
        if not self._took("::="):
            self._refuse(f"::= must follow the name {match[0]}")
        self._skip(_LINES)
        return match[0]

    def _choice(self, depth: int) -> Node:
        """Read options. A line that begins with `|` continues them."""
        if depth > MOST_NESTED:
            self._refuse(f"groups are nested deeper than {MOST_NESTED} levels")
        options = [self._sequence(depth)]
        while match := _OPTION.match(self._text, self._place):
            self._place = match.end()
            self._skip(_LINES)
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self._place < len(self._text) and self._text[self._place] not in "|)\r\n":
            parts.append(self._repeated(self._part(depth), depth))
            self._skip(_LINES if depth else _SPACE)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self, depth: int) -> Node:
        char = self._text[self._place]
        if char == '"':
            return self._literal()
        if char == "[":
            return self._class()
        if self._took("."):
            return chars([], negated=True)
        if self._took("("):
            self._skip(_LINES)
            found = self._choice(depth + 1)
            if not self._took(")"):
                self._refuse("a group has no )")
            return found
        match = _NAME.match(self._text, self._place)
        if match is None:
            kind = "tokens (<...>) are not supported: write their text" if char in "<!" else f"{char!r} is not expected"
            self._refuse(kind)
        self._uses.setdefault(match[0], self._place)
        self._place = match.end()
        return Reference(match[0])

    def _repeated(self, part: Node, depth: int) -> Node:
        """Read the repetitions of a part."""
        while True:
            self._skip(_LINES if depth else _SPACE)
            sign = self._text[self._place : self._place + 1]
            if sign and sign in "*+?":
                self._place += 1
                part = Repeat(part, int(sign == "+"), 1 if sign == "?" else None)
            elif sign == "{":
                part = self._counted(part)
            else:
                return part

    def _counted(self, part: Node) -> Node:
        match = _COUNT.match(self._text, self._place)
        if match is None:
            self._refuse("a repetition is {n}, {n,} or {n,m}")
        least = int(match[1])
        most = least if match[2] is None else None if match[3] is None else int(match[3])
        if max(least, most or 0) > MOST_REPEATS:
            self._refuse(f"{match[0]} repeats more than {MOST_REPEATS} times")
        if most is not None and most < least:
            self._refuse(f"{match[0]} has a limit below its least number")
        self._place = match.end()
        return Repeat(part, least, most)

    def _literal(self) -> Node:
        self._place += 1
        found: list[Node] = []
        while not self._took('"'):
            code = self._char("a text has no end")
            found.append(chars([(code, code)]))
        return found[0] if len(found) == 1 else Sequence(tuple(found))

    def _class(self) -> Node:
        self._place += 1
        negated, ranges = self._took("^"), []
        while not self._took("]"):
            low = high = self._char("a class has no ]")
            if self._ahead("-") and not self._ahead("-]"):
                self._place += 1
                high = self._char("a class has no ]")
            if low > high:
                self._refuse("a range of a class ends before it begins")
            ranges.append((low, high))
        found = chars(ranges, negated=negated)
        if not found.ranges:
            self._refuse("a class has no character")
        return found

    def _char(self, unended: str) -> int:
        """Read one character or escape and return its code point."""
        char = self._text[self._place : self._place + 1]
        if not char:
            self._refuse(unended)
        if char == "\\":
            match = _ESCAPE.match(self._text, self._place)
            if match is None:
                self._refuse(f"{self._text[self._place : self._place + 2]} is not an escape of GBNF")
            number, char = match[1] or match[2] or match[3], match[0]
            code = int(number, 16) if number else ord(_CONTROLS.get(match[4], match[4]))
        else:
            code = ord(char)
        if code > LAST_CHAR or _SURROGATES[0] <= code <= _SURROGATES[1]:
            self._refuse(f"{char!a} is not a character")
        self._place += len(char)
        return code
