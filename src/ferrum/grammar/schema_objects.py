"""Keywords of JSON Schema about objects, as rules of `json_schema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ferrum.grammar.schema_facts import Schema
from ferrum.grammar.schema_keywords import check_unevaluated, pattern
from ferrum.grammar.schema_places import Place, is_schema
from ferrum.grammar.schema_values import constant, count, strings

if TYPE_CHECKING:
    from ferrum.grammar.json_schema import Rule, Walk, Written

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
    for number, name in enumerate(names):
        constant(Place(name, (*place.path, str(number))))
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


RULES: Final[Mapping[str, Rule]] = {
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
