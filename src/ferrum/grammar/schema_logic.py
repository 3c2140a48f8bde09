"""Keywords of JSON Schema that combine schemas, as rules of `json_schema`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ferrum.grammar.schema_facts import Facts, Schema
from ferrum.grammar.schema_negation import check_size, negated
from ferrum.grammar.schema_places import Place

if TYPE_CHECKING:
    from ferrum.grammar.json_schema import Rule, Walk, Written

MOST_OPTIONS: Final = 100
"""Limit of the options of `oneOf`, which are compared in pairs."""


def _listed(walk: Walk, place: Place) -> list[Schema]:
    if not isinstance(place.value, list) or not place.value:
        place.refuse("must be a list of schemas that is not empty")
    return [walk.schema(place.at(each)) for each in range(len(place.value))]


def _ref(walk: Walk, place: Place, out: Written) -> None:
    out.schema["$ref"] = walk.reference(place.owner, place.value)


def _all_of(walk: Walk, place: Place, out: Written) -> None:
    schemas = _listed(walk, place)
    if False in schemas:
        out.parts.append(False)
    out.schema["allOf"] = schemas


def _any_of(walk: Walk, place: Place, out: Written) -> None:
    out.schema["anyOf"] = _listed(walk, place)


def _one_of(walk: Walk, place: Place, out: Written) -> None:
    """Write options that exclude each other as `anyOf`. They are compared when all definitions are written."""
    options = _listed(walk, place)
    if len(options) > MOST_OPTIONS:
        place.refuse(f"has {len(options)} options, more than {MOST_OPTIONS}")
    names = _single_names(place.value)
    if names:
        options = [_only(name, names) for name in names]
    elif len(options) > 1:
        walk.exclusive(place, options)
    if "anyOf" in place.siblings:
        out.parts.append({"anyOf": options})
    else:
        out.schema["anyOf"] = options


def _single_names(options: list[Any]) -> list[str]:
    """Return the distinct names of options that each require one property and nothing else."""
    names = []
    for option in options:
        required = option.get("required") if isinstance(option, Mapping) and len(option) == 1 else None
        if not isinstance(required, list) or len(required) != 1:
            return []
        names.append(required[0])
    return names if len(set(names)) == len(names) > 1 else []


def _only(name: str, names: list[str]) -> Schema:
    """Return a schema of objects that have one of some properties."""
    return {"type": "object", "required": [name], "properties": {each: False for each in names if each != name}}


def check_exclusive(place: Place, options: list[Schema], facts: Facts) -> None:
    """Refuse options of `oneOf` that a value might satisfy together."""
    for first, second in combinations(range(len(options)), 2):
        if not facts.empty([options[first], options[second]]):
            reason = f"is not shown to exclude option {first}; give both a required property with different constants"
            place.refuse(reason, second)


def _not(walk: Walk, place: Place, out: Written) -> None:
    schema = walk.schema(place)
    check_size(schema, place)
    out.parts.append(negated(schema, place))


def _if(walk: Walk, place: Place, out: Written) -> None:
    siblings = place.siblings
    if "then" not in siblings and "else" not in siblings:
        return
    condition = walk.schema(place)
    check_size(condition, place)
    then = walk.schema(place.owner.at("then")) if "then" in siblings else True
    otherwise = walk.schema(place.owner.at("else")) if "else" in siblings else True
    out.parts.append({"anyOf": [{"allOf": [condition, then]}, {"allOf": [negated(condition, place), otherwise]}]})


def _branch(walk: Walk, place: Place, _: Written) -> None:
    """Check a branch, which `if` applies; without it, it has no meaning."""
    if "if" not in place.siblings:
        walk.schema(place)


def _dynamic(_: Walk, place: Place, __: Written) -> NoReturn:
    place.refuse("references that depend on the path of evaluation cannot be enforced")


RULES: Final[Mapping[str, Rule]] = {
    "$ref": _ref,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "then": _branch,
    "else": _branch,
    "$dynamicRef": _dynamic,
    "$recursiveRef": _dynamic,
}
