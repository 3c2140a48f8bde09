"""The negation of a schema as a schema, for `not` and `if`. What has none raises InvalidSchema with the place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from ferrum.grammar.schema_facts import TYPES, Schema, type_of
from ferrum.grammar.schema_places import Place

Negate = Callable[[Place], list[Schema]]

_REVERSED: Final = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
}
"""By keyword: its type, the keyword of the opposite, and what to add to the limit."""


MOST_SIZE: Final = 2_000
"""Values within a schema that is negated; nested conditions double it each time."""


def check_size(schema: Schema, place: Place) -> None:
    """Refuse a schema that is too large to be negated."""
    pending: list[Any] = [schema]
    for _ in range(MOST_SIZE):
        if not pending:
            return
        value = pending.pop()
        pending.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    place.refuse(f"is too large: it has more than {MOST_SIZE} values when conditions are resolved")


def negated(schema: Schema, place: Place) -> Schema:
    """Return a schema of the values that a written schema excludes. Errors name the place."""
    if isinstance(schema, bool):
        return not schema
    options = [option for keyword, value in schema.items() for option in _violations(keyword, value, schema, place)]
    return {"anyOf": options} if options else False


def _violations(keyword: str, value: Any, schema: Mapping[str, Any], place: Place) -> list[Schema]:
    """Return schemas of the values that violate one keyword."""
    if keyword == "type":
        return _other_types(value, place)
    if keyword in ("const", "enum"):
        return _other_values([value] if keyword == "const" else value, place)
    if keyword in _REVERSED:
        kind, opposite, step = _REVERSED[keyword]
        return [{"type": kind, opposite: value + step}] if value + step >= 0 or kind == "number" else []
    if keyword == "required":
        return [{"type": "object", "properties": {name: False}} for name in value]
    if keyword == "properties":
        return [
            {"type": "object", "properties": {name: negated(each, place)}, "required": [name]}
            for name, each in value.items()
            if each is not True and each != {}
        ]
    if keyword == "allOf":
        return [negated(each, place) for each in value]
    if keyword == "anyOf":
        return [{"allOf": [negated(each, place) for each in value]}]
    if keyword == "items" and value is False and "prefixItems" in schema:
        return [{"type": "array", "minItems": len(schema["prefixItems"]) + 1}]
    return place.refuse(f"the negation of {keyword} cannot be enforced")


def _other_types(value: str | Sequence[str], place: Place) -> list[Schema]:
    named = {value} if isinstance(value, str) else set(value)
    if "integer" in named and "number" not in named:
        place.refuse("the negation of integer cannot be enforced")
    rest = [each for each in TYPES if each not in named]
    return [{"type": rest}] if rest else []


def _other_values(values: Sequence[Any], place: Place) -> list[Schema]:
    """Return schemas of the values that are not in a list of strings, numbers, truth values and null."""
    kinds = {type_of(each) for each in values}
    if kinds & {"array", "object"}:
        place.refuse("the negation of a constant array or object cannot be enforced")
    options: list[Schema] = _other_types(sorted(kinds), place)
    if "string" in kinds:
        options.append({"type": "string", "pattern": other_strings([each for each in values if isinstance(each, str)])})
    if "number" in kinds:
        options.extend(_gaps(sorted(each for each in values if type_of(each) == "number")))
    options.extend({"const": each} for each in (True, False) if "boolean" in kinds and not _has(values, each))
    return options


def _has(values: Sequence[Any], flag: bool) -> bool:
    return any(each is flag for each in values)


def _gaps(numbers: Sequence[float]) -> list[Schema]:
    """Return schemas of the numbers below, between and above the given ones."""
    between: list[Schema] = [
        {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        for low, high in pairwise(numbers)
        if low < high
    ]
    return [
        {"type": "number", "exclusiveMaximum": numbers[0]},
        *between,
        {"type": "number", "exclusiveMinimum": numbers[-1]},
    ]


def other_strings(words: Sequence[str]) -> str:
    """Return an anchored pattern of all strings but the words: it leaves their tree of prefixes at every node."""
    return f"^{_leaving(sorted(set(words)), 0)}$"


def _leaving(words: Sequence[str], depth: int) -> str:
    branches: dict[str, list[str]] = {}
    for word in words:
        if len(word) > depth:
            branches.setdefault(word[depth], []).append(word)
    options = [] if any(len(word) == depth for word in words) else [""]
    taken = "".join(f"\\x{{{ord(char):X}}}" for char in branches)
    options.append(f"[^{taken}](?s:.)*" if taken else "(?s:.)+")
    options.extend(f"\\x{{{ord(char):X}}}{_leaving(rest, depth + 1)}" for char, rest in branches.items())
    return f"(?:{'|'.join(options)})"
