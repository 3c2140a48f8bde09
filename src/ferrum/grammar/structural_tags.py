"""Structural tags in Lark: free text with tags whose contents are constrained.

The older form has `structures` and `triggers`. The newer one, xgrammar's, has a `format` of nested parts, of which
those that a grammar can express are read; others are refused with their pointer. The library's lexer takes the longest
match of a terminal, so texts and regular expressions next to each other are one terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Final, NoReturn

from ferrum.core.errors import InvalidGrammar, InvalidSchema
from ferrum.grammar.lark import Lark, literal, regex_literal, sequence
from ferrum.grammar.schema_places import Place


def tag_grammars(
    tag: Mapping[str, Any],
    nested_json: Callable[[Any], str],
    client_lark: Callable[[str], str],
) -> list[dict[str, Any]]:
    """Return llguidance's grammars of a structural tag.

    Args:
        tag: the client's object.
        nested_json: returns an expression of a schema, checked.
        client_lark: returns a grammar in Lark, checked.

    Raises:
        InvalidGrammar, InvalidSchema: a part is wrong or cannot be expressed; the message has its JSON pointer.
    """
    return _Writer(nested_json, client_lark).grammars(Place(tag))


class _Writer:
    """Writes the rules of one structural tag."""

    def __init__(self, nested_json: Callable[[Any], str], client_lark: Callable[[str], str]) -> None:
        self._nested_json = nested_json
        self._client_lark = client_lark
        self._lark = Lark()
        self._free = self._lark.rule("/(?s:.*)/", terminal=True)
        self._grammars: list[dict[str, Any]] = []

    def grammars(self, tag: Place) -> list[dict[str, Any]]:
        if "format" in tag.value:
            _fields(tag, {"format"}, {"type"})
            start = self._part(tag.at("format"))
        else:
            _fields(tag, {"structures", "triggers"}, {"type"})
            start = self._older(tag)
        return [{"lark_grammar": self._lark.grammar(start)}, *self._grammars]

    def _older(self, tag: Place) -> str:
        bodies = []
        for place in _items(tag.at("structures")):
            _fields(place, {"begin", "schema", "end"}, set())
            content = self._json(place.at("schema"))
            bodies.append((_text(place.at("begin")), f"{content} {_end(_text(place.at('end')))}", place))
        return self._triggered([_text(each) for each in _items(tag.at("triggers"))], bodies)

    def _triggered(self, triggers: list[str], bodies: list[tuple[str, str, Place]], count: str = "*") -> str:
        """Return free text, in which a trigger must be continued as one of the tags that begin with it.

        Args:
            triggers: texts.
            bodies: begin, rest and place of each tag.
            count: of tags, after which free text follows: `*` or `+`; "" and "?" end with the first tag.
        """
        rules = []
        for begin, body, place in bodies:
            trigger = next((each for each in triggers if each and begin.startswith(each)), None)
            if trigger is None:
                _refuse(place, f"no trigger is the start of {begin!r}")
            head = self._lark.rule(f"{self._free} {literal(trigger)}", "[lazy]")
            rest = begin[len(trigger) :]
            rules.append(self._lark.rule(f"{head} {literal(rest) if rest else ''} {body}"))
        tags, text = " | ".join(rules), self._lark.rule(self._free)
        if count in ("", "?"):
            return f"({tags} | {text})" if count else f"({tags})"
        return f"({tags}){count} {text}"

    def _json(self, place: Place) -> str:
        try:
            return self._nested_json(place.value)
        except InvalidSchema as error:
            raise InvalidSchema(f"{place.pointer}{error.message.removeprefix('#')}") from None

    def _part(self, place: Place) -> str:
        """Return the expression of a part of the newer form."""
        kind = place.value.get("type") if isinstance(place.value, Mapping) else None
        writer = self._PARTS.get(kind) if isinstance(kind, str) else None
        if writer is None:
            _refuse(place, f"type must be one of {', '.join(sorted(self._PARTS))}, not {kind!r}")
        return writer(self, place)

    def _const(self, place: Place) -> str:
        _fields(place, {"value"}, {"type"})
        return _end(_text(place.at("value")))

    def _schema(self, place: Place) -> str:
        _fields(place, {"json_schema"}, {"type"})
        return self._json(place.at("json_schema"))

    def _pattern(self, place: Place) -> str:
        _fields(place, {"pattern"}, {"type"})
        return regex_literal(_text(place.at("pattern")))

    def _grammar(self, place: Place) -> str:
        _fields(place, {"grammar"}, {"type"})
        text = self._client_lark(_text(place.at("grammar")))
        name = f"g{len(self._grammars)}"
        self._grammars.append({"name": name, "lark_grammar": text})
        return f"@{name}"

    def _any_text(self, place: Place) -> str:
        _fields(place, set(), {"type"})
        return self._free

    def _sequence(self, place: Place) -> str:
        _fields(place, {"elements"}, {"type"})
        elements = _items(place.at("elements"))
        for each in elements[:-1]:
            if isinstance(each.value, Mapping) and each.value.get("type") in ("any_text", "triggered_tags"):
                _refuse(each, "free text can only be the last element, or the content of a tag")
        parts: list[str] = []
        for is_regular, group in groupby(elements, _is_regular):
            found = list(map(self._part, group))
            parts += [self._lark.rule(sequence(*found), terminal=True)] if is_regular and len(found) > 1 else found
        return f"({' '.join(parts)})"

    def _or(self, place: Place) -> str:
        _fields(place, {"elements"}, {"type"})
        return f"({' | '.join(map(self._part, _items(place.at('elements'))))})"

    def _tag(self, place: Place) -> str:
        return f"({_end(_text(place.at('begin')))} {self._body(place)})"

    def _body(self, place: Place) -> str:
        """Return the content and the end of a tag; free text ends at the first end."""
        _fields(place, {"begin", "content", "end"}, {"type"})
        content, end = place.at("content"), _text(place.at("end"))
        if isinstance(content.value, Mapping) and content.value.get("type") == "any_text":
            _fields(content, set(), {"type"})
            if not end:
                _refuse(place, "free text needs an end that is not empty")
            return self._lark.rule(f"{self._free} {literal(end)}", "[lazy]")
        if _is_regular(content) and end:
            return self._lark.rule(sequence(self._part(content), literal(end)), terminal=True)
        return f"{self._part(content)} {_end(end)}"

    def _triggered_tags(self, place: Place) -> str:
        _fields(place, {"triggers", "tags"}, {"type", "at_least_one", "stop_after_first"})
        least, first = _flag(place, "at_least_one"), _flag(place, "stop_after_first")
        bodies = [(_text(each.at("begin")), self._body(each), each) for each in _tags(place)]
        count = ("" if least else "?") if first else ("+" if least else "*")
        triggers = [_text(each) for each in _items(place.at("triggers"))]
        return f"({self._triggered(triggers, bodies, count)})"

    def _separated(self, place: Place) -> str:
        _fields(place, {"tags", "separator"}, {"type", "at_least_one", "stop_after_first"})
        one = self._lark.rule(" | ".join(map(self._tag, _tags(place))))
        many = one if _flag(place, "stop_after_first") else f"{one} ({literal(_text(place.at('separator')))} {one})*"
        return f"({many})" if _flag(place, "at_least_one") else f"({many})?"

    _PARTS: Final[Mapping[str, Callable[[_Writer, Place], str]]] = {
        "const_string": _const,
        "json_schema": _schema,
        "regex": _pattern,
        "grammar": _grammar,
        "any_text": _any_text,
        "sequence": _sequence,
        "or": _or,
        "tag": _tag,
        "triggered_tags": _triggered_tags,
        "tags_with_separator": _separated,
    }


def _is_regular(part: Place) -> bool:
    """Return whether a part is a regular expression or a text, or consists of such parts."""
    kind = part.value.get("type") if isinstance(part.value, Mapping) else None
    if kind in ("sequence", "or"):
        return all(map(_is_regular, _items(part.at("elements"))))
    return kind in ("const_string", "regex")


def _refuse(place: Place, reason: str) -> NoReturn:
    raise InvalidGrammar(f"{place.pointer}: {reason}")


def _fields(place: Place, needed: set[str], optional: set[str]) -> None:
    """Refuse anything but an object with these fields."""
    if not isinstance(place.value, Mapping):
        _refuse(place, "must be an object")
    for name in sorted(needed - place.value.keys()):
        _refuse(place, f"has no {name}")
    for name in place.value:
        if name not in needed | optional:
            _refuse(place.at(name), "is not supported")


def _items(place: Place) -> list[Place]:
    if not isinstance(place.value, list) or not place.value:
        _refuse(place, "must be a list that is not empty")
    return [place.at(each) for each in range(len(place.value))]


def _tags(place: Place) -> list[Place]:
    tags = _items(place.at("tags"))
    for each in tags:
        _fields(each, {"begin", "content", "end"}, {"type"})
    return tags


def _text(place: Place) -> str:
    if not isinstance(place.value, str):
        _refuse(place, "must be a string")
    text: str = place.value
    return text


def _flag(place: Place, name: str) -> bool:
    value = place.value.get(name, False)
    if not isinstance(value, bool):
        _refuse(place.at(name), "must be true or false")
    return bool(value)


def _end(text: str) -> str:
    return literal(text) if text else '""'
