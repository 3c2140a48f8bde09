"""JSON text in pieces: strings escaped and unescaped as they arrive, and the text of a custom tool in its arguments."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from ferrum.core.values import MOST_DIGITS

INPUT: Final = "input"
"""The only argument of a custom tool, in formats that write arguments by name."""

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_PLAIN: Final = re.compile(r'[^"\\]+')
_HEX: Final = re.compile(r"[0-9a-fA-F]{4}\Z")
_HIGH, _LOW, _END = 0xD800, 0xDC00, 0xE000


def loaded(text: str) -> Any:
    """Return the value of JSON text; of integers that are too long for Python, the first digits.

    Raises:
        ValueError, RecursionError: it is none, or it is nested too deep.
    """
    return json.loads(text, parse_constant=_no_constant, parse_int=lambda digits: int(digits[:MOST_DIGITS]))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def escaped(text: str) -> str:
    """Return text as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class StringText:
    """The text of a JSON string, from its inside in pieces.

    Attributes:
        ended: the closing quote has come.
    """

    __slots__ = ("_escape", "_high", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._escape = ""
        self._high = 0

    def feed(self, text: str) -> tuple[str, int]:
        """Return decoded text, and the number of characters read: all, or those up to the closing quote."""
        out: list[str] = []
        at = 0
        while at < len(text) and not self.ended:
            if self._escape:
                self._escape += text[at]
                at += 1
                out.append(self._unescaped())
                continue
            plain = _PLAIN.match(text, at)
            if plain:
                out.append(self._lone() + plain.group())
                at = plain.end()
            elif text[at] == '"':
                out.append(self._lone())
                self.ended = True
                at += 1
            else:
                self._escape = "\\"
                at += 1
        return "".join(out), at

    def _lone(self) -> str:
        """Return U+FFFD for a high surrogate that no low one follows."""
        lone, self._high = self._high, 0
        return "\ufffd" if lone else ""

    def _unescaped(self) -> str:
        """Return the character of an escape that is complete, else nothing."""
        escape = self._escape
        if escape[1] != "u":
            self._escape = ""
            return self._lone() + _ESCAPES.get(escape[1], escape[1])
        if len(escape) < 6:
            return ""
        self._escape = ""
        if not _HEX.match(escape, 2):
            return self._lone() + "\ufffd"
        code = int(escape[2:], 16)
        if self._high and _LOW <= code < _END:
            pair = chr(0x10000 + (self._high - _HIGH) * 0x400 + code - _LOW)
            self._high = 0
            return pair
        lone = self._lone()
        if _HIGH <= code < _LOW:
            self._high = code
            return lone
        return lone + ("\ufffd" if _LOW <= code < _END else chr(code))


_OPENING: Final = re.compile(r'\s*(?:\{\s*(?:"(?:i(?:n(?:p(?:u(?:t(?:"\s*(?::\s*(?:"|\Z))?)?)?)?)?)?)?)?)?\Z')
_OPENED: Final = re.compile(r'\s*(?:\{\s*"input"\s*:\s*)?"')


class InputText:
    """The text of a custom tool, from arguments `{"input": text}` or a JSON string in pieces.

    Other arguments are the text as they are.
    """

    __slots__ = ("_head", "_string", "_verbatim")

    def __init__(self) -> None:
        self._head = ""
        self._string: StringText | None = None
        self._verbatim = False

    def feed(self, text: str) -> str:
        """Return text of the tool."""
        if self._verbatim:
            return text
        if self._string is None:
            self._head += text
            opened = _OPENED.match(self._head)
            if opened is None:
                if _OPENING.match(self._head):
                    return ""
                self._verbatim = True
                return self._head
            self._string = StringText()
            text = self._head[opened.end() :]
        return self._string.feed(text)[0]

    def finish(self) -> str:
        """Return the text that was held back: arguments that ended before their string."""
        return self._head if self._string is None and not self._verbatim and self._head.strip() != "{}" else ""
