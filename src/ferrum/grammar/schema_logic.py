"""Keywords of JSON Schema that combine and negate schemas, as rules of `json_schema`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ferrum.grammar.schema_facts import Facts, Schema
from ferrum.grammar.schema_places import Place

if TYPE_CHECKING:
    from ferrum.grammar.json_schema import Rule, Walk, Written
from collections.abc import Callable, Sequence
from itertools import pairwise

from ferrum.grammar.schema_facts import TYPES, type_of

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


# The negation of a schema as a schema. What has none raises InvalidSchema with the place.

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
