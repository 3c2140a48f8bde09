"""Keywords of JSON Schema about single values and arrays, as rules of `json_schema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ferrum.core.values import shown
from ferrum.grammar.ecma_patterns import translated
from ferrum.grammar.formats_of_strings import FORMATS, INTEGER_BOUNDS, READERS
from ferrum.grammar.schema_facts import TYPES
from ferrum.grammar.schema_places import Place
from ferrum.grammar.schema_values import constant, count, number

if TYPE_CHECKING:
    from ferrum.grammar.json_schema import Rule, Walk, Written

_IN_PLACE: Final = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "contains")
"""Keywords whose subschemas may evaluate properties and items of the same value."""


def types(place: Place) -> list[str]:
    """Return the types of a valid `type`."""
    value = place.value
    named = [value] if isinstance(value, str) else value
    known = (*TYPES, "integer")
    if not isinstance(named, list) or not named or not all(isinstance(each, str) for each in named):
        place.refuse(f"must be a type or a list of types, not {shown(value)}")
    for each in named:
        if each not in known:
            place.refuse(f"{each!r} is not one of {', '.join(known)}")
    nullable = ["null"] if place.siblings.get("nullable") is True else []
    return list(dict.fromkeys([*named, *nullable]))


def _type(_: Walk, place: Place, out: Written) -> None:
    named = types(place)
    out.schema["type"] = named[0] if len(named) == 1 else named


def _nullable(_: Walk, place: Place, __: Written) -> None:
    """Check OpenAPI's flag, which `type` applies."""
    if not isinstance(place.value, bool):
        place.refuse(f"must be true or false, not {shown(place.value)}")


def _const(_: Walk, place: Place, out: Written) -> None:
    out.schema["const"] = constant(place)


def _enum(_: Walk, place: Place, out: Written) -> None:
    if not isinstance(place.value, list) or not place.value:
        place.refuse(f"must be a list that is not empty, not {shown(place.value)}")
    out.schema["enum"] = [constant(place.at(each)) for each in range(len(place.value))]


def _bound(_: Walk, place: Place, out: Written) -> None:
    out.schema[place.path[-1]] = number(place)


def _exclusive(walk: Walk, place: Place, out: Written) -> None:
    """Write an exclusive bound. In draft 4 it is a flag of the other bound."""
    if not isinstance(place.value, bool):
        return _bound(walk, place, out)
    keyword = place.path[-1]
    bound = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}[keyword]
    if place.value:
        if bound not in place.siblings:
            place.refuse(f"as a flag requires {bound}")
        out.schema[keyword] = number(place.owner.at(bound))
    return None


def _multiple(walk: Walk, place: Place, out: Written) -> None:
    out.schema["multipleOf"] = walk.multiples.add(place)


def _count(_: Walk, place: Place, out: Written) -> None:
    keyword, limit = place.path[-1], count(place)
    pick = max if keyword.startswith("min") else min
    out.schema[keyword] = pick(limit, out.schema.get(keyword, limit))


def pattern(place: Place, text: Any) -> str:
    """Return a pattern for llguidance; the place is named in errors."""
    if not isinstance(text, str):
        place.refuse(f"must be a string, not {shown(text)}")
    try:
        return translated(text)
    except ValueError as error:
        return place.refuse(f"{shown(text)} {error}")


def _pattern(_: Walk, place: Place, out: Written) -> None:
    out.schema["pattern"] = pattern(place, place.value)


def _format(_: Walk, place: Place, out: Written) -> None:
    name, siblings = place.value, place.siblings
    if not isinstance(name, str):
        place.refuse(f"must be a string, not {shown(name)}")
    if name in FORMATS:
        out.parts.append({"pattern": FORMATS[name]})
    elif name in INTEGER_BOUNDS:
        limit = INTEGER_BOUNDS[name]
        out.parts.append({"minimum": -limit, "maximum": limit - 1})
    elif name not in READERS and "string" in siblings.get("type", "string"):
        place.refuse(f"{name!r} cannot be enforced; enforced are {', '.join(sorted(FORMATS))}")


def _items(walk: Walk, place: Place, out: Written) -> None:
    if not isinstance(place.value, list):
        out.schema["items"] = walk.schema(place)
        return
    if "prefixItems" in place.siblings:
        place.refuse("as a list contradicts prefixItems")
    out.schema["prefixItems"] = [walk.schema(place.at(each)) for each in range(len(place.value))]


def _prefix_items(walk: Walk, place: Place, out: Written) -> None:
    if not isinstance(place.value, list) or not place.value:
        place.refuse("must be a list of schemas that is not empty")
    out.schema["prefixItems"] = [walk.schema(place.at(each)) for each in range(len(place.value))]


def _additional_items(walk: Walk, place: Place, out: Written) -> None:
    """Write the items after a tuple; without `items` as a list the keyword has no meaning in any draft."""
    schema = walk.schema(place)
    if isinstance(place.siblings.get("items"), list):
        out.schema["items"] = schema


def _unique_items(_: Walk, place: Place, __: Written) -> None:
    if not isinstance(place.value, bool):
        place.refuse(f"must be true or false, not {shown(place.value)}")
    most = place.siblings.get("maxItems")
    if place.value and not (isinstance(most, int) and most <= 1):
        place.refuse("true cannot be enforced, because items would have to be compared")


def _contains(walk: Walk, place: Place, out: Written) -> None:
    siblings, schema = place.siblings, walk.schema(place)
    least = count(place.owner.at("minContains")) if "minContains" in siblings else 1
    most = siblings.get("maxContains")
    if schema is True or schema == {}:
        out.schema["minItems"] = max(least, out.schema.get("minItems", 0))
        if most is not None:
            limit = count(place.owner.at("maxContains"))
            out.schema["maxItems"] = min(limit, out.schema.get("maxItems", limit))
    elif least or most is not None:
        place.refuse("cannot be enforced, because items would have to be counted")


def _contains_count(_: Walk, place: Place, __: Written) -> None:
    """Check a count, which `contains` applies."""
    count(place)


def check_unevaluated(place: Place) -> None:
    """Refuse `unevaluated...` next to keywords that may evaluate; without them it equals `additional...`."""
    for keyword in _IN_PLACE:
        if keyword in place.siblings:
            place.refuse(f"cannot be enforced next to {keyword}")


def _unevaluated_items(walk: Walk, place: Place, out: Written) -> None:
    schema, items = walk.schema(place), place.siblings.get("items")
    if schema is True or schema == {}:
        return
    check_unevaluated(place)
    if items is None or (isinstance(items, list) and "additionalItems" not in place.siblings):
        out.schema["items"] = schema


RULES: Final[Mapping[str, Rule]] = {
    "type": _type,
    "nullable": _nullable,
    "const": _const,
    "enum": _enum,
    "minimum": _bound,
    "maximum": _bound,
    "exclusiveMinimum": _exclusive,
    "exclusiveMaximum": _exclusive,
    "multipleOf": _multiple,
    "minLength": _count,
    "maxLength": _count,
    "minItems": _count,
    "maxItems": _count,
    "pattern": _pattern,
    "format": _format,
    "items": _items,
    "prefixItems": _prefix_items,
    "additionalItems": _additional_items,
    "uniqueItems": _unique_items,
    "contains": _contains,
    "minContains": _contains_count,
    "maxContains": _contains_count,
    "unevaluatedItems": _unevaluated_items,
}
