"""Keywords of JSON Schema about single values, arrays and objects, as rules of `json_schema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ferrum.core.values import shown
from ferrum.grammar.ecma_patterns import translated
from ferrum.grammar.schema_facts import TYPES
from ferrum.grammar.schema_places import Place, constant, count, number

if TYPE_CHECKING:
    from ferrum.grammar.json_schema import Rule, Walk, Written
from types import MappingProxyType

from ferrum.grammar.schema_facts import Schema
from ferrum.grammar.schema_places import is_schema, strings

# Single values and arrays

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


_OF_VALUES: Final[Mapping[str, Rule]] = {
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


# Objects

_OPENNESS: Final = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames")


def _mapping(place: Place) -> Mapping[str, Any]:
    if not isinstance(place.value, Mapping):
        place.refuse("must be an object")
    return place.value


def _properties(walk: Walk, place: Place, out: Written) -> None:
    written = {name: walk.schema(place.at(name)) for name in _mapping(place)}
    for name in written:
        constant(Place(name, (*place.path, name)))
    out.schema["properties"] = {**out.schema.get("properties", {}), **written}
    if walk.closed and not any(each in place.siblings for each in _OPENNESS):
        out.schema["additionalProperties"] = False


def _required(_: Walk, place: Place, out: Written) -> None:
    names = strings(place)
    for index, name in enumerate(names):
        constant(Place(name, (*place.path, str(index))))
    out.schema["required"] = names


def _additional(walk: Walk, place: Place, out: Written) -> None:
    out.schema["additionalProperties"] = walk.schema(place)


def _pattern_properties(walk: Walk, place: Place, out: Written) -> None:
    written: dict[str, Schema] = {}
    for name in _mapping(place):
        text = pattern(Place(name, (*place.path, name)), name)
        if text in written:
            place.refuse("is the same pattern as another one", name)
        written[text] = walk.schema(place.at(name))
    out.schema["patternProperties"] = written


def _names(walk: Walk, place: Place, out: Written) -> None:
    """Write `propertyNames` as the properties that have such names, and no others."""
    siblings = place.siblings
    schema = walk.schema(place)
    if schema is True or schema in ({}, {"type": "string"}):
        return
    if "patternProperties" in siblings or "unevaluatedProperties" in siblings:
        place.refuse("cannot be enforced next to patternProperties or unevaluatedProperties")
    rest = walk.schema(place.owner.at("additionalProperties")) if "additionalProperties" in siblings else True
    keywords = {} if schema is False else dict(schema)
    kinds, parts = keywords.pop("type", "string"), keywords.pop("allOf", [])
    if schema is False or "string" not in kinds:
        out.parts.append({"maxProperties": 0})
    elif len(keywords) == 1 and not parts and ("enum" in keywords or "const" in keywords):
        allowed = [name for name in keywords.get("enum", [keywords.get("const")]) if isinstance(name, str)]
        out.parts.append({"properties": dict.fromkeys(allowed, rest), "additionalProperties": False})
    elif len(parts) <= 1 and (found := _name_pattern({**keywords, **dict(*parts)}, len(keywords) + len(parts))):
        if siblings.get("properties"):
            place.refuse("by a pattern cannot be enforced next to properties")
        out.parts.append({"patternProperties": {found: rest}, "additionalProperties": False})
    else:
        place.refuse("can be enforced with one of const, enum, pattern, format, minLength and maxLength only")


def _name_pattern(keywords: Mapping[str, Any], number: int) -> str | None:
    """Return the pattern of names that satisfy one keyword, or both bounds of the length."""
    if number == 1 and "pattern" in keywords:
        return str(keywords["pattern"])
    if number == len(keywords) and keywords.keys() <= {"minLength", "maxLength"}:
        return f"^(?s:.{{{keywords.get('minLength', 0)},{keywords.get('maxLength', '')}}})$"
    return None


def _most_properties(_: Walk, place: Place, out: Written) -> None:
    out.schema["maxProperties"] = count(place)


def _least_properties(_: Walk, place: Place, out: Written) -> None:
    """Write the least number of properties. Names outside `properties` may be written twice, so two cannot count."""
    siblings, least = place.siblings, count(place)
    required = siblings.get("required")
    left = least - len(set(strings(place.owner.at("required")))) if required is not None else least
    if left <= 0:
        return
    if left > 1 and not (siblings.get("additionalProperties") is False and "patternProperties" not in siblings):
        place.refuse("above 1 can be enforced with required, or with additionalProperties = false only")
    out.schema["minProperties"] = least


def _unevaluated(walk: Walk, place: Place, out: Written) -> None:
    schema = walk.schema(place)
    if schema is True or schema == {}:
        return
    check_unevaluated(place)
    if "additionalProperties" not in place.siblings:
        out.schema["additionalProperties"] = schema


def _dependent_required(_: Walk, place: Place, out: Written) -> None:
    for name in _mapping(place):
        names = strings(place.at(name))
        out.parts.append(_either_absent(name, {"required": [name, *(each for each in names if each != name)]}))


def _dependent_schemas(walk: Walk, place: Place, out: Written) -> None:
    for name in _mapping(place):
        schema = walk.schema(place.at(name))
        out.parts.append(_either_absent(name, {"required": [name], "allOf": [schema]}))


def _dependencies(walk: Walk, place: Place, out: Written) -> None:
    """Write each of draft 7's dependencies as the keyword that it became."""
    for name in _mapping(place):
        each = Place({name: place.value[name]}, place.path, place.up)
        if is_schema(place.value[name]):
            _dependent_schemas(walk, each, out)
        else:
            _dependent_required(walk, each, out)


def _either_absent(name: str, otherwise: Schema) -> Schema:
    return {"anyOf": [{"properties": {name: False}}, {"type": "object", **otherwise}]}  # type: ignore[dict-item]


_OF_OBJECTS: Final[Mapping[str, Rule]] = {
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "patternProperties": _pattern_properties,
    "propertyNames": _names,
    "maxProperties": _most_properties,
    "minProperties": _least_properties,
    "unevaluatedProperties": _unevaluated,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
}


# The keyword `format`: regular expressions, anchored, in the syntax that llguidance reads.
#
# Each matches only valid strings (RFC 3339, 5321, 1123, 3986, 4291, 4122, 6901). Rare spellings are left out: leap
# seconds, quoted local parts, addresses of IPv4 within IPv6.

_LEAP: Final = "(?:0[48]|[2468][048]|[13579][26])"
_YEAR: Final = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DATE: Final = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    f"02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29)"
)
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_N: Final = "[0-9]{1,9}"
_CLOCK: Final = f"T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"
_DAYS: Final = f"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"
_LABEL: Final = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}"
_ATOM: Final = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,31}"
_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_H: Final = "[0-9a-fA-F]{1,4}"
_HEX: Final = "[0-9a-fA-F]"
_IPV6: Final = "|".join(
    (
        f"(?:{_H}:){{7}}{_H}",
        f"(?:{_H}:){{1,7}}:",
        *(f"(?:{_H}:){{1,{7 - count}}}(?::{_H}){{1,{count}}}" for count in range(1, 7)),
        f":(?:(?::{_H}){{1,7}}|:)",
    )
)
_CHAR: Final = f"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%{_HEX}{{2}})"
_NO_COLON: Final = f"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%{_HEX}{{2}})"
_HOST: Final = f"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%{_HEX}{{2}})*"
_USER: Final = f"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%{_HEX}{{2}})*@"
_AUTHORITY: Final = f"//(?:{_USER})?{_HOST}(?::[0-9]{{1,5}})?(?:/{_CHAR}*)*"
_ROOTED: Final = f"/(?:{_CHAR}+(?:/{_CHAR}*)*)?"
_TAIL: Final = rf"(?:\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?"
_URI: Final = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{_AUTHORITY}|{_ROOTED}|{_CHAR}+(?:/{_CHAR}*)*){_TAIL}"
_RELATIVE: Final = f"(?:{_AUTHORITY}|{_ROOTED}|{_NO_COLON}+(?:/{_CHAR}*)*|){_TAIL}"
_POINTER: Final = "(?:/(?:[^~/]|~[01])*)*"

FORMATS: Final = MappingProxyType(
    {
        name: f"^(?:{pattern})$"
        for name, pattern in {
            "date": _DATE,
            "time": _TIME,
            "date-time": f"{_DATE}T{_TIME}",
            "duration": f"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|{_N}W)",
            "email": rf"{_ATOM}(?:\.{_ATOM})?@{_LABEL}(?:\.{_LABEL}){{1,3}}",
            "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,3}}",
            "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
            "ipv6": _IPV6,
            "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
            "uri": _URI,
            "uri-reference": f"{_URI}|{_RELATIVE}",
            "json-pointer": _POINTER,
            "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
        }.items()
    }
)
"""The formats that are enforced."""

INTEGER_BOUNDS: Final = MappingProxyType({"int32": 2**31, "int64": 2**53})
"""Formats of OpenAPI that bound integers: at least minus this, below this. Exact integers of JSON end at 2**53."""

READERS: Final = frozenset({"float", "double"})
"""Formats of OpenAPI that say how to store a number; every number has them."""


RULES: Final[Mapping[str, Rule]] = {**_OF_VALUES, **_OF_OBJECTS}
