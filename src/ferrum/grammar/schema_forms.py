"""A strict tool's schema as forms: alternatives without references and combined schemas, for calls that are not JSON.

The schema is one that `checked_schema` wrote: it combines schemas by `allOf`, `anyOf` and references to `$defs` only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, TypeAlias

from ferrum.core.errors import InvalidSchema
from ferrum.core.output_format import Tool
from ferrum.core.values import shown
from ferrum.formats.argument_types import type_of
from ferrum.grammar.lark import regex, regex_literal
from ferrum.grammar.schema_places import same

Schema: TypeAlias = Mapping[str, Any] | bool

MOST_FORMS: Final = 64
TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_NUMBERS: Final = frozenset({"integer", "number"})
_OF_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


@dataclass(frozen=True, slots=True)
class Form:
    """What one alternative of a schema says about a value.

    Attributes:
        types: possible types; "number" stands for numbers that are no integers.
        values: the only possible values, or None.
        least, most: bounds of the length of a string; `most` None: without.
        patterns: regular expressions of whole strings.
        few, many: bounds of the number of items; `many` None: without.
        first: schemas of the first items.
        items: schema of the others.
        properties: schemas by name; None if the schema has no such keyword.
        required: names.
        others: schema of other properties.
        counts: bounds of the number of properties.
        has_patterns: some schemas of properties depend on patterns of their names.
        bounds: numbers have bounds.
    """

    types: frozenset[str] = TYPES
    values: tuple[Any, ...] | None = None
    least: int = 0
    most: int | None = None
    patterns: tuple[str, ...] = ()
    few: int = 0
    many: int | None = None
    first: tuple[Schema, ...] = ()
    items: Schema = True
    properties: Mapping[str, Schema] | None = None
    required: tuple[str, ...] = ()
    others: Schema = True
    counts: tuple[int, int | None] = (0, None)
    has_patterns: bool = False
    bounds: bool = False

    def limits(self, kind: str) -> bool:
        """Return whether anything but the type limits values of a type."""
        if self.values is not None:
            return True
        if kind == "string":
            return bool(self.least or self.most is not None or self.patterns)
        if kind == "array":
            return bool(self.few or self.many is not None or self.first or not _is_any(self.items))
        if kind == "object":
            named = self.properties or self.required or self.has_patterns or self.counts != (0, None)
            return bool(named or not _is_any(self.others))
        return kind in _NUMBERS and self.bounds

    def named(self) -> Iterator[tuple[str, Schema, bool]]:
        """Yield the possible properties of an object with their schemas, and whether each is required."""
        properties = self.properties or {}
        for name, schema in properties.items():
            if schema is not False:
                yield name, schema, name in self.required
        for name in self.required:
            if name not in properties:
                yield name, self.others, True


ANY: Final = Form()


class Forms:
    """The forms of one tool's schema.

    Args:
        tool: strict, with a checked schema.
    """

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self.root: Mapping[str, Any] = json.loads(tool.parameters)
        self.definitions: Mapping[str, Any] = self.root.get("$defs", {})

    def refuse(self, pointer: str, reason: str) -> NoReturn:
        """Raise InvalidSchema about a place of the schema."""
        raise InvalidSchema(
            f"{pointer} of the strict tool {shown(self._tool.name)}: {reason} cannot be enforced in this model's "
            "format of calls (leave it out, or leave out strict)",
            param="tools",
        )

    def of(self, schema: Schema, pointer: str) -> list[Form]:
        """Return the forms of a schema.

        Raises:
            InvalidSchema: it has no or too many forms.
        """
        found = self._of(schema, pointer, ())
        if not found:
            self.refuse(pointer, "a schema that no value satisfies")
        return found

    def nested(self, schema: Schema, types: frozenset[str] = TYPES) -> dict[str, Any]:
        """Return a schema with the definitions of the whole, for values of some types only."""
        known: dict[str, Any] = {"$defs": dict(self.definitions)} if self.definitions else {}
        if types == TYPES:
            return {**known, **schema} if isinstance(schema, Mapping) else known
        named = sorted(types - {"integer"} if "number" in types else types)
        return {**known, "type": named, "allOf": [schema]}

    def check_counts(self, form: Form, named: list[tuple[str, Schema, bool]], pointer: str) -> None:
        """Refuse an object whose properties would have to be counted, or found by patterns of their names."""
        fewest, most = form.counts
        if fewest > sum(required for _, _, required in named):
            self.refuse(f"{pointer}/minProperties", f"at least {fewest} properties without their names in required")
        if most is not None and (most < len(named) or form.others is not False):
            self.refuse(f"{pointer}/maxProperties", f"at most {most} properties")
        if form.has_patterns:
            self.refuse(f"{pointer}/patternProperties", "a schema of properties by patterns of their names")

    def _of(self, schema: Schema, pointer: str, around: tuple[str, ...]) -> list[Form]:
        if isinstance(schema, bool):
            return [ANY] if schema else []
        found = [_own(schema)]
        parts = [self._of(each, pointer, around) for each in schema.get("allOf", ())]
        if "anyOf" in schema:
            parts.append([form for each in schema["anyOf"] for form in self._of(each, pointer, around)])
        if "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/")
            # A value satisfies a reference to the schema around it by another alternative only.
            inner = [] if name in around else self._of(self.definitions[name], pointer, (*around, name))
            parts.append(inner)
        for options in parts:
            found = [form for one in found for other in options if (form := _meet(one, other)) is not None]
            if len(found) > MOST_FORMS:
                self.refuse(pointer, f"a combination of more than {MOST_FORMS} alternatives")
        return [form for each in found if (form := _settled(each)) is not None]


def _own(schema: Mapping[str, Any]) -> Form:
    """Return what a schema says without its parts."""
    kinds = schema.get("type", TYPES)
    types = frozenset({kinds} if isinstance(kinds, str) else kinds)
    values = schema.get("enum")
    if "const" in schema:
        values = [schema["const"]]
    return Form(
        types=types | {"integer"} if "number" in types else types,
        values=None if values is None else tuple(values),
        least=schema.get("minLength", 0),
        most=schema.get("maxLength"),
        patterns=(schema["pattern"],) if "pattern" in schema else (),
        few=schema.get("minItems", 0),
        many=schema.get("maxItems"),
        first=tuple(schema.get("prefixItems", ())),
        items=schema.get("items", True),
        properties=schema.get("properties"),
        required=tuple(schema.get("required", ())),
        others=schema.get("additionalProperties", True),
        counts=(schema.get("minProperties", 0), schema.get("maxProperties")),
        has_patterns="patternProperties" in schema,
        bounds=any(each in schema for each in _OF_NUMBERS),
    )


def _meet(one: Form, other: Form) -> Form | None:
    """Return what two forms say together; None if no value satisfies both."""
    values = one.values if other.values is None else other.values
    if one.values is not None and other.values is not None:
        values = tuple(each for each in one.values if any(same(each, value) for value in other.values))
    places = range(max(len(one.first), len(other.first)))
    found = replace(
        one,
        types=one.types & other.types,
        values=values,
        least=max(one.least, other.least),
        most=_smaller(one.most, other.most),
        patterns=tuple(dict.fromkeys((*one.patterns, *other.patterns))),
        few=max(one.few, other.few),
        many=_smaller(one.many, other.many),
        first=tuple(_all(_item(one, each), _item(other, each)) for each in places),
        items=_all(one.items, other.items),
        properties=_properties(one, other),
        required=tuple(dict.fromkeys((*one.required, *other.required))),
        others=_all(one.others, other.others),
        counts=(max(one.counts[0], other.counts[0]), _smaller(one.counts[1], other.counts[1])),
        has_patterns=one.has_patterns or other.has_patterns,
        bounds=one.bounds or other.bounds,
    )
    return found if found.types and values != () else None


def _settled(form: Form) -> Form | None:
    """Return a form without types that have no values; None if none is left."""
    named = list(form.named())
    denied = any((form.properties or {}).get(name) is False for name in form.required)
    types = form.types - {"object"} if denied or any(schema is False for _, schema, _ in named) else form.types
    if form.values is not None:
        types &= {type_of(each) for each in form.values}
    return replace(form, types=types) if types else None


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _item(form: Form, place: int) -> Schema:
    return form.first[place] if place < len(form.first) else form.items


def _properties(one: Form, other: Form) -> Mapping[str, Schema] | None:
    if one.properties is None or other.properties is None:
        known = one.properties if other.properties is None else other.properties
        rest = one.others if one.properties is None else other.others
        return known if known is None else {name: _all(schema, rest) for name, schema in known.items()}
    names = dict.fromkeys((*one.properties, *other.properties))
    return {
        name: _all(one.properties.get(name, one.others), other.properties.get(name, other.others)) for name in names
    }


def _all(one: Schema, other: Schema) -> Schema:
    """Return a schema of the values that satisfy both."""
    if one is False or other is False:
        return False
    if _is_any(one) or one == other:
        return other
    return one if _is_any(other) else {"allOf": [one, other]}


def _is_any(schema: Schema) -> bool:
    return schema is True or schema == {}


def string_terminal(form: Form) -> str:
    """Return a terminal of the strings of a form; empty if any is."""
    parts = []
    if form.values is not None:
        parts.append(f"/{'|'.join(regex(each) for each in form.values if isinstance(each, str))}/")
    if form.least or form.most is not None:
        parts.append(f"/(?s:.{{{form.least},{'' if form.most is None else form.most}}})/")
    # A checked pattern has anchors at both ends and none within.
    parts += (regex_literal(each.removeprefix("^").removesuffix("$")) for each in form.patterns)
    return " & ".join(parts)
