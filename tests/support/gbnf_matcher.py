"""A matcher of GBNF that tries every way through a grammar, character by character; it shares no code with ferrum.

It follows llama.cpp's documentation (grammars/README.md): rules, texts, classes, `.`, groups, `|`, repetitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Ends = set[int]
Part = Callable[[str, int], Ends]
"""Returns where a part that begins at a place of a text may end."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\#[^\n]*)|(?P<line>\n)|(?P<text>"(?:\\.|[^"\\])*")|(?P<set>\[(?:\\.|[^\]\\])*\])"""
    r"""|(?P<count>\{\d+(?:,\d*)?\}|[*+?])|(?P<name>[\w-]+)|(?P<sign>::=|[()|.])""",
    re.DOTALL,
)
_CHAR = re.compile(r"\\x(..)|\\u(....)|\\U(........)|\\(.)|(.)", re.DOTALL)


def _chars(text: str) -> list[str]:
    found = []
    for match in _CHAR.finditer(text):
        code = match[1] or match[2] or match[3]
        found.append(
            chr(int(code, 16)) if code else {"n": "\n", "t": "\t", "r": "\r"}.get(match[4], match[4] or match[5])
        )
    return found


def _class(source: str) -> Part:
    negated, inside = source.startswith("[^"), source[1:-1].removeprefix("^")
    pieces = [match.group() for match in _CHAR.finditer(inside)]
    allowed: list[tuple[str, str]] = []
    while pieces:
        low = _chars(pieces.pop(0))[0]
        is_range = len(pieces) > 1 and pieces[0] == "-"
        allowed.append((low, _chars(pieces[1])[0] if is_range else low))
        del pieces[: 2 * is_range]

    def match(text: str, at: int) -> Ends:
        if at == len(text):
            return set()
        return {at + 1} if any(low <= text[at] <= high for low, high in allowed) is not negated else set()

    return match


class GbnfMatcher:
    """The texts of a grammar.

    Args:
        grammar: without rules that begin with themselves.
    """

    def __init__(self, grammar: str) -> None:
        self._tokens = [(m.lastgroup or "", m.group()) for m in _TOKEN.finditer(grammar) if m.lastgroup != "space"]
        self._rules: dict[str, Part] = {}
        while self._tokens:
            kind, name = self._tokens.pop(0)
            if kind == "name":
                self._tokens.pop(0)
                self._rules[name] = self._options()

    def accepts(self, text: str) -> bool:
        """Return whether a text is complete in the grammar."""
        return len(text) in self._rules["root"](text, 0)

    def _options(self) -> Part:
        options = [self._sequence()]
        while self._tokens[:1] == [("sign", "|")]:
            self._tokens.pop(0)
            options.append(self._sequence())
        return lambda text, at: {end for option in options for end in option(text, at)}

    def _sequence(self) -> Part:
        parts: list[Part] = []
        while self._tokens and self._tokens[0] not in (("sign", "|"), ("sign", ")"), ("line", "\n")):
            part = self._part()
            while self._tokens and self._tokens[0][0] == "count":
                part = _repeated(part, self._tokens.pop(0)[1])
            parts.append(part)

        def match(text: str, at: int) -> Ends:
            ends = {at}
            for part in parts:
                ends = {end for start in ends for end in part(text, start)}
            return ends

        return match

    def _part(self) -> Part:
        kind, source = self._tokens.pop(0)
        if kind == "text":
            wanted = "".join(_chars(source[1:-1]))
            return lambda text, at: {at + len(wanted)} if text.startswith(wanted, at) else set()
        if kind == "set":
            return _class(source)
        if kind == "name":
            return lambda text, at: self._rules[source](text, at)
        if source == ".":
            return lambda text, at: {at + 1} if at < len(text) else set()
        found = self._options()
        self._tokens.pop(0)
        return found


def _repeated(part: Part, count: str) -> Part:
    low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(count, (0, 0))
    if count[0] == "{":
        least, comma, most = count[1:-1].partition(",")
        low, high = int(least), (int(most) if most else None) if comma else int(least)

    def match(text: str, at: int) -> Ends:
        found: Ends = {at} if low == 0 else set()
        ends, seen, number = {at}, {at}, 0
        while ends and number != high:
            number += 1
            ends = {end for start in ends for end in part(text, start)}
            found |= ends if number >= low else set()
            if number >= low:
                ends -= seen
                seen |= ends
        return found

    return match
