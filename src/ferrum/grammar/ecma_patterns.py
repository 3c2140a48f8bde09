r"""Regular expressions of JSON Schema (ECMA 262, Unicode mode) in the syntax that llguidance reads.

The dialects differ in `.`, sets such as `\\s`, classes and escapes, so a pattern is written again, piece by piece. What
has no equivalent, such as look-around, raises ValueError with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Final, TypeAlias

from ferrum.grammar.lark import character

# Anchors: what they mean is written out, since llguidance reads them at the ends only.
#
# An expression becomes up to four without anchors, by whether a match begins where the text does, and whether it ends
# where the text ends.

_MOST_EXPRESSION: Final = 16 * 1024
_TEXT: Final = "(?s:.*)"


@dataclass(frozen=True, slots=True)
class Part:
    """An expression without anchors, and whether it matches the empty text."""

    regex: str
    empty: bool


Anchored: TypeAlias = Mapping[tuple[bool, bool], Part]
"""An expression by (a match begins where the text does, and ends where it ends); absent: there is no such match."""

_FREE: Final = (False, False)
NOTHING: Final[Anchored] = MappingProxyType({_FREE: Part("", empty=True)})
START: Final[Anchored] = MappingProxyType({(True, False): Part("", empty=True)})
END: Final[Anchored] = MappingProxyType({(False, True): Part("", empty=True)})


def plain(regex: str) -> Anchored:
    """Return an expression of one character or more, without anchors."""
    return {_FREE: Part(regex, empty=False)}


def one_after_the_other(parts: Iterable[Anchored]) -> Anchored:
    """Return expressions in sequence."""
    found = NOTHING
    for each in parts:
        found = _in_sequence(found, each)
    return found


def _in_sequence(one: Anchored, other: Anchored) -> Anchored:
    found: dict[tuple[bool, bool], list[Part]] = {}
    for ((start, ended), first), ((begun, end), second) in product(one.items(), other.items()):
        # What precedes the start of the text, and what follows its end, is empty.
        if (begun and not first.empty) or (ended and not second.empty):
            continue
        regex = ("" if begun else first.regex) + ("" if ended else second.regex)
        part = Part(regex, (first.empty or begun) and (second.empty or ended))
        found.setdefault((start or begun, ended or end), []).append(part)
    return _united(found)


def either(options: Iterable[Anchored]) -> Anchored:
    """Return one of several expressions."""
    found: dict[tuple[bool, bool], list[Part]] = {}
    for option in options:
        for ends, part in option.items():
            found.setdefault(ends, []).append(part)
    return _united(found)


def _united(found: Mapping[tuple[bool, bool], list[Part]]) -> Anchored:
    united = {}
    for ends, parts in found.items():
        texts = list(dict.fromkeys(each.regex for each in parts))
        regex = texts[0] if len(texts) == 1 else f"(?:{'|'.join(texts)})"
        if len(regex) > _MOST_EXPRESSION:
            raise ValueError(f"has more than {_MOST_EXPRESSION} characters once its anchors are written out")
        united[ends] = Part(regex, any(each.empty for each in parts))
    return united


def repeated(part: Anchored, least: int, most: int | None) -> Anchored:
    """Return an expression several times; `most` None: without a limit.

    Raises:
        ValueError: an expression with anchors is repeated by a count.
    """
    count = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    count = count or f"{{{least},{'' if most is None else most}}}"
    if part.keys() <= {_FREE}:
        inner = part.get(_FREE, Part("", empty=False))
        if not part:
            return NOTHING if least == 0 else {}
        return {_FREE: Part(f"(?:{inner.regex}){count}", inner.empty or least == 0)}
    if least > 1 or most not in (1, None):
        raise ValueError("has an anchor in a counted repetition, which cannot be enforced")
    options = [part] if least else [NOTHING, part]
    if most is None:
        middle = {_FREE: Part(f"(?:{part[_FREE].regex})*", empty=True)} if _FREE in part else NOTHING
        options.append(one_after_the_other([part, middle, part]))
    return either(options)


def searched(expression: Anchored) -> str:
    """Return the expression of texts in which one matches somewhere.

    Raises:
        ValueError: it matches nothing.
    """
    texts = [f"{'' if start else _TEXT}{part.regex}{'' if end else _TEXT}" for (start, end), part in expression.items()]
    return _whole(texts)


def matched(expression: Anchored) -> str:
    """Return the expression of texts that one matches as a whole.

    Raises:
        ValueError: it matches nothing.
    """
    return _whole([part.regex for part in expression.values()])


def _whole(texts: list[str]) -> str:
    if not texts:
        raise ValueError("matches no text, because of an anchor in its middle")
    return f"(?:{'|'.join(dict.fromkeys(texts))})"


# The reader of patterns

MOST_CHARACTERS: Final = 4096
"""Limit of a pattern."""

MOST_REPEATS: Final = 10_000
"""Limit of a counted repetition."""

_DIGITS: Final = "0-9"
_WORD: Final = "0-9A-Za-z_"
_SPACE: Final = (
    r"\t\n\x0B\x0C\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}"  # ECMA 262, 12.2
)
_SETS: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_ANY: Final = r"[^\n\r\x{2028}\x{2029}]"
_CONTROLS: Final = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_REPEAT: Final = re.compile(r"(?:(?P<sign>[*+?])|\{(?P<low>\d+)(?P<comma>,)?(?P<high>(?<=,)\d+)?\})\??")
_UNSUPPORTED_GROUPS: Final = ("?=", "?!", "?<=", "?<!")
_NAMED_GROUP: Final = re.compile(r"\?<[A-Za-z_$][\w$]*>")


def translated(pattern: str) -> str:
    """Return the pattern in the syntax of Rust's regex, as `^(?:...)$` without other anchors. Raises ValueError."""
    if len(pattern) > MOST_CHARACTERS:
        raise ValueError(f"has more than {MOST_CHARACTERS} characters")
    return f"^{searched(_Reader(pattern).read())}$"


class _Reader:
    """Reads a pattern from left to right.

    Args:
        pattern: of ECMA 262.
    """

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._place = 0

    def read(self) -> Anchored:
        found = self._disjunction()
        if self._place < len(self._text):
            raise ValueError("has a ) without a (")
        return found

    def _disjunction(self) -> Anchored:
        """Read alternatives, each with its own anchors (22.2.1), up to the end or a closing bracket."""
        options: list[list[Anchored]] = [[]]
        while self._place < len(self._text) and not self._ahead(")"):
            if self._ahead("|"):
                self._place += 1
                options.append([])
            else:
                options[-1].append(self._repeated(self._piece()))
        return either(map(one_after_the_other, options))

    def _take(self) -> str:
        if self._place == len(self._text):
            raise ValueError("the pattern ends within an escape or a class")
        char = self._text[self._place]
        self._place += 1
        return char

    def _ahead(self, text: str) -> bool:
        return self._text.startswith(text, self._place)

    def _piece(self) -> Anchored:
        if match := _REPEAT.match(self._text, self._place):
            raise ValueError(f"has a {match[0]} with nothing to repeat")
        char = self._take()
        if char in "^$":
            return START if char == "^" else END
        if char == "(":
            return self._group()
        if char == "\\":
            return plain(self._escape_outside())
        if char == "[":
            return plain(self._class())
        return plain(_ANY if char == "." else _literal(ord(char)))

    def _repeated(self, part: Anchored) -> Anchored:
        """Read the repetition of a part. The mark of a lazy one changes no text that matches."""
        match = _REPEAT.match(self._text, self._place)
        if match is None:
            return part
        self._place = match.end()
        sign = match["sign"]
        if sign:
            return repeated(part, int(sign == "+"), 1 if sign == "?" else None)
        low = int(match["low"])
        high = low if match["comma"] is None else int(match["high"]) if match["high"] else None
        if max(low, high or 0) > MOST_REPEATS:
            raise ValueError(f"repeats more than {MOST_REPEATS} times")
        return repeated(part, low, high)

    def _group(self) -> Anchored:
        if any(map(self._ahead, _UNSUPPORTED_GROUPS)):
            raise ValueError("has a look-around, which cannot be enforced")
        if self._ahead("?:"):
            self._place += 2
        elif named := _NAMED_GROUP.match(self._text, self._place):
            self._place = named.end()
        elif self._ahead("?"):
            raise ValueError(f"has an unknown group ({self._text[self._place : self._place + 4]!r}")
        found = self._disjunction()
        if not self._ahead(")"):
            raise ValueError("has a ( without a )")
        self._place += 1
        return found

    def _escape_outside(self) -> str:
        kind = self._take()
        if kind in "bB":
            raise ValueError("has a word boundary, which cannot be enforced")
        if kind == "k" or kind in "123456789":
            raise ValueError("has a back-reference, which cannot be enforced")
        if kind.lower() in _SETS:
            return f"[{'^' if kind.isupper() else ''}{_SETS[kind.lower()]}]"
        if kind in "pP":
            return self._property(kind)
        return _literal(self._code(kind))

    def _property(self, kind: str) -> str:
        match = re.compile(r"\{[A-Za-z_]+(=[A-Za-z_]+)?\}").match(self._text, self._place)
        if match is None:
            raise ValueError(f"has \\{kind} without the name of a property in braces")
        self._place = match.end()
        return f"\\{kind}{match[0]}"

    def _code(self, kind: str) -> int:
        """Return the code point of an escape that stands for one character."""
        if kind in _CONTROLS:
            return _CONTROLS[kind]
        if kind == "0" and not self._text[self._place : self._place + 1].isdecimal():
            return 0
        if kind == "c":
            letter = self._take()
            if letter.isascii() and letter.isalpha():
                return ord(letter) % 32
        if kind == "x":
            return self._hex(2)
        if kind == "u":
            return self._unicode()
        if kind.isascii() and kind.isalnum():
            raise ValueError(f"has an unknown escape \\{kind}")
        return ord(kind)

    def _hex(self, digits: int) -> int:
        text = self._text[self._place : self._place + digits]
        if not re.fullmatch(f"[0-9A-Fa-f]{{{digits}}}", text):
            raise ValueError(f"has an escape without {digits} hexadecimal digits")
        self._place += digits
        return int(text, 16)

    def _unicode(self) -> int:
        if match := re.compile(r"\{([0-9A-Fa-f]{1,6})\}").match(self._text, self._place):
            self._place = match.end()
            return int(match[1], 16)
        code = self._hex(4)
        if 0xD800 <= code < 0xDC00 and self._ahead("\\u"):
            self._place += 2
            low = self._hex(4)
            return 0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00)
        return code

    def _class(self) -> str:
        negated = self._ahead("^")
        self._place += negated
        if self._ahead("]"):
            self._place += 1
            if not negated:
                raise ValueError("has an empty class []")
            return "(?s:.)"
        members: list[str | int] = []
        while not self._ahead("]"):
            members.append(self._member())
        self._place += 1
        return f"[{'^' if negated else ''}{_joined(members)}]"

    def _member(self) -> str | int:
        """Return a code point, a set as text, or "-" for an unescaped hyphen."""
        char = self._take()
        if char == "-":
            return "-"
        if char != "\\":
            return ord(char)
        kind = self._take()
        if kind == "b":
            return 8
        if kind in _SETS:
            return _SETS[kind]
        if kind.lower() in _SETS:
            return f"[^{_SETS[kind.lower()]}]"
        return self._property(kind) if kind in "pP" else self._code(kind)


def _joined(members: list[str | int]) -> str:
    """Return the inside of a class; a hyphen between two characters is a range."""
    found, place = [], 0
    while place < len(members):
        member = members[place]
        last = members[place + 2] if place + 2 < len(members) else None
        if isinstance(last, str) and last == "-":
            last = ord("-")
        if isinstance(member, int) and members[place + 1 : place + 2] == ["-"] and isinstance(last, int):
            if member > last:
                raise ValueError("has a range whose end is before its start")
            found.append(f"{_literal(member)}-{_literal(last)}")
            place += 3
            continue
        found.append(r"\-" if member == "-" else _literal(member) if isinstance(member, int) else member)
        place += 1
    return "".join(found)


def _literal(code: int) -> str:
    """Return a character of a pattern. Raises ValueError if there is none."""
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise ValueError("has half of a surrogate pair or no code point")
    return character(code)
