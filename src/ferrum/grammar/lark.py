"""The one writer of grammars as text, in llguidance's variant of Lark and its JSON of several grammars.

Literals, expressions, rules, and JSON by schema. What they say is elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ferrum.core.errors import InvalidGrammar
from ferrum.core.output_format import Arguments
from ferrum.formats.patterns import NO_MARKERS, SPACE, Markers, is_mark

_SPECIAL: Final = re.compile(r"[.*+?()\[\]{}|^$\\/&~#-]")
_TO_ESCAPE: Final = re.compile(r"\\.|[/\n]", re.DOTALL)
_MARKS: Final = re.compile("([\ud800-\udfff])")


def literal(text: str) -> str:
    """Return a text as a literal."""
    return json.dumps(text, ensure_ascii=False)


def regex(text: str) -> str:
    """Return the inside of a regular expression that matches a text."""
    escaped = _SPECIAL.sub(lambda found: "\\" + found.group(), text)
    return escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


MOST_REGEX: Final = 16 * 1024
"""Characters of a regular expression; its first mask takes up to 0.2 seconds."""


def regex_literal(pattern: str) -> str:
    """Return a client's regular expression as a literal. Raises InvalidGrammar if it is too long."""
    if len(pattern) > MOST_REGEX:
        raise InvalidGrammar(f"has {len(pattern)} characters, more than {MOST_REGEX}")
    return delimited(pattern)


def delimited(pattern: str) -> str:
    """Return a regular expression between slashes, with its own slashes and line breaks escaped."""
    spelled = {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}
    return f"/{_TO_ESCAPE.sub(lambda found: spelled.get(found.group(), found.group()), pattern)}/"


def character(code: int) -> str:
    """Return one character of a regular expression so that it has no special meaning, in or out of a class."""
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:X}}}"


def sequence(*parts: str) -> str:
    """Return expressions one after the other; empty ones are left out."""
    return " ".join(each for each in parts if each)


def either(options: Iterable[str]) -> str:
    """Return one of several expressions."""
    found = list(dict.fromkeys(options))
    return found[0] if len(found) == 1 else f"( {' | '.join(found)} )"


def optional(expression: str) -> str:
    """Return an expression or nothing."""
    return f"( {expression} )?" if expression else ""


def list_of(item: str, separator: str, *, many: bool = True) -> str:
    """Return one item or, if `many`, several with a separator between them."""
    return sequence(item, f"( {sequence(separator, item)} )*") if many else item


class Lark:
    """A grammar that is being written.

    Args:
        markers: of the format; their tokens stand in the grammar as tokens.

    Attributes:
        shared: names of rules that several parts of the grammar use, by their own keys.
    """

    def __init__(self, markers: Markers = NO_MARKERS) -> None:
        self._markers = markers
        self._ids = {char: token for token, char in markers.chars.items()}
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self.shared: dict[object, str] = {}

    def rule(self, body: str, options: str = "", *, terminal: bool = False) -> str:
        """Add a rule or a terminal, if it is new, and return its name."""
        whole = f"{options}: {body}"
        if whole not in self._names:
            self._names[whole] = f"{'T' if terminal else 'r'}{len(self._rules)}"
            self._rules[self._names[whole]] = whole
        return self._names[whole]

    def reserve(self) -> str:
        """Return the name of a new rule, whose body `define` gives later: it may refer to itself."""
        name = f"r{len(self._rules)}"
        self._rules[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        """Give a reserved rule its body."""
        self._rules[name] = f": {body}"

    def text(self, text: str) -> str:
        """Return an expression of a format's text, with tokens where the vocabulary has them."""
        return self._rest(self._markers.translated(text))

    def is_text(self, text: str) -> bool:
        """Return whether no part of a format's text is a token."""
        return not any(map(is_mark, self._markers.translated(text)))

    def cut(self, text: str) -> tuple[str, str]:
        """Return a format's text up to its first token, and the rest."""
        translated = self._markers.translated(text)
        head = next((index for index, char in enumerate(translated) if is_mark(char)), len(translated))
        return text[:head], text[head:]

    def until(self, close: str, body: str = "(?s:.*)") -> str:
        """Return an expression of any text up to a closing text, which is part of it."""
        translated = self._markers.translated(close)
        if not any(map(is_mark, translated)):
            head = translated.partition("\n")[0]
            first = self.rule(f"/{body}{regex(head)}/", "[lazy]")
            return sequence(first, literal(translated[len(head) :]) if len(head) < len(translated) else "")
        head = translated[: next(index for index, char in enumerate(translated) if is_mark(char))]
        return sequence(self.rule(f"/{body}{regex(head)}/"), self._rest(translated[len(head) :]))

    def closed(self, body: str, close: str) -> str:
        """Return an expression of a terminal and the closing text right after it, which the terminal does not hold.

        White space after the closing text is left out if that is not a token.
        """
        head, rest = self.cut(close)
        if rest:
            body = sequence(f"( {body} )", literal(head) if head else "")
            return sequence(self.rule(body, terminal=True), self.text(rest))
        inner = f"( {body} ) & ~/(?s:.*){regex(close.strip(SPACE))}(?s:.*)/"
        return self.lazy(f"( {inner} ) {literal(close.rstrip(SPACE))}")

    def lazy(self, body: str) -> str:
        """Return a rule of a terminal's shortest match. Of several in one place, each that matches counts."""
        return self.rule(self.rule(body, terminal=True), "[lazy]")

    def _rest(self, translated: str) -> str:
        return sequence(
            *(
                f"<[{self._ids[each]}]>" if each in self._ids else literal(each)
                for each in _MARKS.split(translated)
                if each
            )
        )

    def grammar(self, start: str) -> str:
        """Return the grammar with the rule that it begins with."""
        lines = [f"{name}{whole}" for name, whole in self._rules.items()]
        return "\n".join([f"start: {start}", *lines, ""])


def in_order(lark: Lark, items: list[tuple[str, bool]], separator: str, opening: str = "") -> str:
    """Return items in order, with a separator between those that are there.

    Args:
        items: each with whether it is required.
        opening: stands before the first.
    """
    # From the back: what may follow an item that is there, and what may stand if none is there yet.
    following, starting = "", ""
    for item, required in reversed(items):
        after, alone = sequence(separator, item, following), sequence(opening, item, following)
        if required:
            following, starting = lark.rule(after), lark.rule(alone)
        else:
            following = lark.rule(either([after, following or '""']))
            starting = lark.rule(either([alone, starting or '""']))
    return starting


# JSON by schema

WHITE_SPACE: Final = r"\x20|\r?\n(?:\x20{0,40}|\t{0,10})"
"""The white space between tokens of JSON, at most once in each place."""

ESCAPES: Final = 'nrbtf\\"'
"""Escapes in strings of JSON: without `\\u`, which would spell a property's name a second time."""


def with_options(
    schema: Mapping[str, Any], *, white_space: str | None = WHITE_SPACE, arguments: Arguments | None = None
) -> dict[str, Any]:
    """Return a checked schema with the options of JSON for llguidance.

    Args:
        white_space: pattern of what may stand between tokens of JSON; None: nothing.
        arguments: give the separators of a format, in which nothing else stands between tokens.
    """
    options: dict[str, Any] = {"json_allowed_escapes": ESCAPES}
    if white_space is None or arguments is not None:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = white_space
    if arguments is not None:
        options["item_separator"] = regex(arguments.item_separator)
        options["key_separator"] = regex(arguments.key_separator)
    return {"x-guidance": options, **schema}


def json_of(schema: Mapping[str, Any], arguments: Arguments | None = None) -> str:
    """Return an expression of JSON by a checked schema, in the spelling of a format if there is one."""
    return f"%json {json.dumps(with_options(schema, arguments=arguments))}"


def schema_grammar(schema: Mapping[str, Any], *, white_space: str | None = WHITE_SPACE) -> str:
    """Return the grammar of a schema that `checked_schema` returned."""
    return joined([{"json_schema": with_options(schema, white_space=white_space)}])


# Several grammars in one


def joined(grammars: Sequence[Mapping[str, Any]]) -> str:
    """Return llguidance's JSON of grammars, of which the first is the start; it refers to others as `@NAME`."""
    return json.dumps({"grammars": grammars}, ensure_ascii=False, separators=(",", ":"))


def joined_by_name(start: str, named: Mapping[str, str]) -> str:
    """Return a grammar of several by name; `start` is a Lark rule that refers to them."""
    grammars: list[Mapping[str, Any]] = [{"lark_grammar": start}]
    for name, text in named.items():
        first, *others = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
        grammars += [{**first, "name": name}, *others]
    return joined(grammars)
