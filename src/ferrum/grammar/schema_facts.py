"""Proofs that no finite value satisfies some schemas together: they exclude each other, or recur without an end.

"Empty" is proven, its opposite is not. Schemas here are those that `json_schema` has written: references lead to
`$defs`, and `oneOf` is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ferrum.formats import argument_types
from ferrum.grammar.schema_places import same

Schema = dict[str, Any] | bool
Parts = dict[int, dict[str, Any]]
"""Schemas that hold at the same value, by identity."""

TYPES: Final = ("null", "boolean", "number", "string", "array", "object")
_MOST_STEPS: Final = 30_000
_MOST_DEPTH: Final = 60
"""Of nested proofs, and of schemas that require each other at one value. Python's own stack is limited."""


def type_of(value: Any) -> str:
    """Return the JSON type of a value; integers are numbers."""
    kind = argument_types.type_of(value)
    return "number" if kind == "integer" else kind


def types_of(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema's own keywords allow; integers are numbers."""
    named = schema.get("type", list(TYPES))
    types = {"number" if each == "integer" else each for each in ([named] if isinstance(named, str) else named)}
    for values in ([schema["const"]] if "const" in schema else None, schema.get("enum")):
        if values is not None:
            types &= set(map(type_of, values))
    return types


class Facts:
    """Proofs about schemas with these definitions. The work of all together is bounded.

    Args:
        definitions: by reference.
    """

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._steps = 0
        self._depth = 0
        self._open: set[frozenset[int]] = set()

    def empty(self, schemas: Sequence[Schema]) -> bool:
        """Whether it is proven that no finite value satisfies all the schemas."""
        parts: Parts = {}
        if not all(self._flatten(each, parts, ()) for each in schemas):
            return True
        key = frozenset(parts)
        if key in self._open:  # a value would have to contain a smaller one without end
            return True
        self._open.add(key)
        try:
            return self._search(parts, [part["anyOf"] for part in parts.values() if "anyOf" in part])
        finally:
            self._open.remove(key)

    def _flatten(self, schema: Schema, parts: Parts, around: tuple[int, ...]) -> bool:
        """Collect a schema and those it requires at the same value; return False if one is false or requires itself."""
        if isinstance(schema, bool):
            return schema
        if id(schema) in around:
            return False
        if id(schema) in parts or len(around) > _MOST_DEPTH:
            return True
        parts[id(schema)] = schema
        required = list(schema.get("allOf", ()))
        if "$ref" in schema:
            required.append(self._definitions[schema["$ref"]])
        return all(self._flatten(each, parts, (*around, id(schema))) for each in required)

    def _search(self, parts: Parts, groups: list[list[Schema]]) -> bool:
        """Whether the parts are empty together with each choice of options, one from every group."""
        self._steps += 1
        if self._steps > _MOST_STEPS or self._depth > _MOST_DEPTH:
            return False
        self._depth += 1
        try:
            if self._no_type(list(parts.values())):
                return True
            return bool(groups) and all(self._no_option(option, parts, groups[1:]) for option in groups[0])
        finally:
            self._depth -= 1

    def _no_option(self, option: Schema, parts: Parts, groups: list[list[Schema]]) -> bool:
        more = dict(parts)
        if not self._flatten(option, more, ()):
            return True
        added = [part["anyOf"] for name, part in more.items() if name not in parts and "anyOf" in part]
        return self._search(more, groups + added)

    def _no_type(self, parts: list[dict[str, Any]]) -> bool:
        types = set(TYPES).intersection(*map(types_of, parts))
        return all(self._excluded(each, parts) for each in types)

    def _excluded(self, kind: str, parts: list[dict[str, Any]]) -> bool:
        """Whether no value of a type satisfies all the parts."""
        if no_value(kind, parts):
            return True
        if kind == "number":
            return _no_number(parts)
        if kind == "string":
            return _crossed(parts, "minLength", "maxLength")
        if kind == "array":
            least = max((part.get("minItems", 0) for part in parts), default=0)
            places = range(min(least, 1 + max((len(part.get("prefixItems", ())) for part in parts), default=0)))
            return _crossed(parts, "minItems", "maxItems") or any(self.empty(_items(parts, each)) for each in places)
        if kind == "object":
            names = {name for part in parts for name in part.get("required", ())}
            if _crossed([*parts, {"minProperties": len(names)}], "minProperties", "maxProperties"):
                return True
            return any(self.empty(_values(parts, name)) for name in sorted(names))
        return False


def no_value(kind: str, parts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether constants of the parts leave no value of a type."""
    listed = [[part["const"]] for part in parts if "const" in part] + [part["enum"] for part in parts if "enum" in part]
    if not listed:
        return False
    values = [value for value in listed[0] if type_of(value) == kind]
    return not any(all(any(same(value, other) for other in each) for each in listed[1:]) for value in values)


def _crossed(parts: Sequence[Mapping[str, Any]], low: str, high: str) -> bool:
    """Whether the greatest lower bound is above the least upper bound."""
    lows = [part[low] for part in parts if low in part]
    highs = [part[high] for part in parts if high in part]
    return bool(lows and highs and max(lows) > min(highs))


def _no_number(parts: Sequence[Mapping[str, Any]]) -> bool:
    for low, high in (("minimum", "exclusiveMaximum"), ("exclusiveMinimum", "maximum")):
        lows = [part[low] for part in parts if low in part]
        highs = [part[high] for part in parts if high in part]
        if lows and highs and max(lows) >= min(highs):
            return True
    return _crossed(parts, "minimum", "maximum") or _crossed(parts, "exclusiveMinimum", "exclusiveMaximum")


def _items(parts: Sequence[Mapping[str, Any]], place: int) -> list[Schema]:
    found: list[Schema] = []
    for part in parts:
        prefix = part.get("prefixItems", ())
        found.append(prefix[place] if place < len(prefix) else part.get("items", True))
    return found


def _values(parts: Sequence[Mapping[str, Any]], name: str) -> list[Schema]:
    """Return the schemas of a property, as far as they do not depend on patterns."""
    found: list[Schema] = []
    for part in parts:
        if name in part.get("properties", {}):
            found.append(part["properties"][name])
        elif "patternProperties" not in part:
            found.append(part.get("additionalProperties", True))
    return found
