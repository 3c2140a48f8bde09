"""Regular expressions of JSON Schema (ECMA 262, Unicode mode) in the syntax that llguidance reads.

The dialects differ in `.`, sets such as `\\s`, classes and escapes, so a pattern is written again, piece by piece. What
has no equivalent, such as look-around, raises ValueError with the reason.
"""

from __future__ import annotations

import re
from typing import Final

from ferrum.grammar.anchors import END, START, Anchored, either, one_after_the_other, plain, repeated, searched

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
    """Return one character so that it has no special meaning, in or out of a class."""
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise ValueError("has half of a surrogate pair or no code point")
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:X}}}"
