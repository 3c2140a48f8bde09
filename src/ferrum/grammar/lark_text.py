"""Checks of clients' Lark grammars: nested schemas are checked, and what the engine cannot roll back is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from ferrum.core.errors import InvalidGrammar

_PIECES: Final = re.compile(
    r"""(?P<kept>"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/)|(?P<json>%json\b)|(?P<option>%llguidance\b)"""
    r"""|(?P<attribute>\b(?:max_tokens|temperature|stop)\s*=)|(?P<rule>:)"""
)
MOST_RULES: Final = 500
"""Rules and terminals; llguidance's recursion through them ends the process at about 2500."""

MOST_CHARACTERS: Final = 64 * 1024
_READER: Final = json.JSONDecoder()


def literal(text: str) -> str:
    """Return a text as a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def checked_lark(text: str, nested: Callable[[Any], str]) -> str:
    """Return a client's grammar with its schemas replaced by checked ones.

    Args:
        text: Lark, as llguidance reads it.
        nested: returns the text of a checked schema.

    Raises:
        InvalidGrammar: it uses an attribute that prevents taking tokens back, or options of the library.
        InvalidSchema: a nested schema is wrong or cannot be enforced.
    """
    if len(text) > MOST_CHARACTERS:
        raise InvalidGrammar(f"has {len(text)} characters in Lark, more than {MOST_CHARACTERS}")
    found, place, rules = [], 0, 0
    while match := _PIECES.search(text, place):
        found.append(text[place : match.end()])
        place = match.end()
        rules += match["rule"] is not None
        if rules > MOST_RULES:
            raise InvalidGrammar(f"has more than {MOST_RULES} rules and terminals")
        if match["attribute"] is not None:
            name = match["attribute"].rstrip("= \t\n")
            raise InvalidGrammar(f"the attribute {name} is not supported: tokens could not be taken back")
        if match["option"] is not None:
            options, place = _json(text, place, "%llguidance")
            if options != {}:
                raise InvalidGrammar("options after %llguidance are not supported")
            found.append(" {}")
        if match["json"] is not None:
            schema, place = _json(text, place, "%json")
            found.append(f" {nested(schema)}")
    return "".join([*found, text[place:]])


def _json(text: str, place: int, keyword: str) -> tuple[Any, int]:
    """Return the JSON at a place, and its end."""
    while text[place : place + 1].isspace():
        place += 1
    try:
        return _READER.raw_decode(text, place)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(f"{keyword} is not followed by JSON: {error}") from None
