"""The JSON value of an argument that a format writes as plain text, by the tool's schema."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from ferrum.core.output_format import Tool, ToolKind
from ferrum.formats.json_text import INPUT, loaded

STRING: Final = frozenset({"string"})
_MAX_DEPTH: Final = 8
_MAX_STEPS: Final = 10_000
"""Parts of a schema that are looked at, over all arguments; later ones have any type."""
_MAX_NAMES: Final = 1024
_MAX_LITERAL: Final = 1 << 16
"""Characters of a literal of Python that is read; parsing one costs 100 times its text."""

Types = frozenset[str] | None
"""Names of JSON types that a value may have; None: any."""


class ArgumentTypes:
    """The types of a tool's arguments, as far as its schema says them, through references and combined schemas.

    Args:
        schema: of the arguments.

    Attributes:
        names: of the arguments that the schema names.
        closed: the schema allows no other names.
    """

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._steps = _MAX_STEPS
        self.closed = False
        self._places: list[tuple[Mapping[str, Any], bool]] = []
        self._find(schema, alternative=False)
        objects = [each for each, _ in self._places]
        self.names = tuple(dict.fromkeys(name for each in objects for name in _mapping(each, "properties")))
        self._found: dict[str, Types] = {}

    def get(self, name: str) -> Types:
        """Return the types of an argument."""
        if name not in self._found:
            if len(self._found) > _MAX_NAMES:
                self._found.clear()
            self._found[name] = self._get(name)
        return self._found[name]

    @property
    def others(self) -> Types:
        """The types of all arguments without a name in the schema, if they are the same."""
        if any(_mapping(each, "patternProperties") for each, _ in self._places):
            return None
        return self.get("") if "" not in self.names else None

    def _find(self, schema: Any, *, alternative: bool) -> None:
        """Note the schemas that hold for the object itself; `alternative`: one of several does."""
        self._steps -= 1
        if not isinstance(schema, dict) or self._steps < 0:
            return
        self._places.append((schema, alternative))
        self.closed |= not alternative and False in (
            schema.get("additionalProperties"),
            schema.get("unevaluatedProperties"),
        )
        if isinstance(schema.get("$ref"), str):
            other = _referred(schema["$ref"], self._root)
            if not any(other is each for each, _ in self._places):
                self._find(other, alternative=alternative)
        for key in ("allOf", "anyOf", "oneOf"):
            for each in schema[key] if isinstance(schema.get(key), list) else ():
                self._find(each, alternative=alternative or key != "allOf")

    def _get(self, name: str) -> Types:
        certain: Types = None
        possible: list[Types] = []
        for schema, alternative in self._places:
            for each in _named(schema, name):
                types = self._types(each, 0)
                if alternative:
                    possible.append(types)
                else:
                    certain = _both(certain, types)
        return _both(certain, _any_of(possible))

    def _types(self, schema: Any, depth: int) -> Types:
        """Return the types of a schema."""
        self._steps -= 1
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._steps < 0:
            return None
        types = _own_types(schema)
        if isinstance(schema.get("$ref"), str):
            types = _both(types, self._types(_referred(schema["$ref"], self._root), depth + 1))
        for each in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
            types = _both(types, self._types(each, depth + 1))
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                types = _both(types, _any_of([self._types(each, depth + 1) for each in schema[key]]))
        if types is not None and schema.get("nullable") is True:
            types |= {"null"}
        return types


@lru_cache(maxsize=512)
def argument_types(tool: Tool) -> ArgumentTypes:
    """Return the types of a tool's arguments by name."""
    if tool.kind is ToolKind.CUSTOM:
        return ArgumentTypes({"properties": {INPUT: {"type": "string"}}})
    try:
        return ArgumentTypes(json.loads(tool.parameters or "{}"))
    except (ValueError, RecursionError):
        return ArgumentTypes({})


def _mapping(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = schema.get(key)
    return found if isinstance(found, dict) else {}


def _named(schema: Mapping[str, Any], name: str) -> list[Any]:
    """Return what one object's schema says about an argument."""
    properties = _mapping(schema, "properties")
    found = [properties[name]] if name in properties else []
    found += [each for pattern, each in _mapping(schema, "patternProperties").items() if _matches(pattern, name)]
    return found or [each for each in (schema.get("additionalProperties"),) if isinstance(each, dict)]


def _matches(pattern: str, name: str) -> bool:
    """Return whether a regular expression of a schema matches a name; one that Python cannot read does not."""
    try:
        return re.search(pattern, name) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def _own_types(schema: Mapping[str, Any]) -> Types:
    """Return the types that a schema says without its parts."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(each for each in kind if isinstance(each, str))
    if isinstance(schema.get("enum"), list):
        return frozenset(type_of(each) for each in schema["enum"])
    return frozenset({type_of(schema["const"])}) if "const" in schema else None


def _both(types: Types, others: Types) -> Types:
    """Return the types that two schemas allow; the first ones if they contradict each other."""
    if types is None or others is None:
        return others if types is None else types
    wide = {"integer"} if "number" in types and "integer" in others else set()
    wide |= {"integer"} if "number" in others and "integer" in types else set()
    return (types & others) | wide or types


def _any_of(options: list[Types]) -> Types:
    """Return the types that one of several schemas allows."""
    found = [each for each in options if each is not None]
    return frozenset().union(*found) if found and len(found) == len(options) else None


def _referred(reference: str, root: Any) -> Any:
    """Return what a reference within the schema points to, or None."""
    if not reference.startswith("#/"):
        return None
    for step in reference[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(root, dict) or name not in root:
            return None
        root = root[name]
    return root


def type_of(value: Any) -> str:
    """Return the name of a value's JSON type."""
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "string")


def typed_json(text: str, types: Types) -> str:
    """Return a value as JSON text: JSON that the types allow as it is, a literal of Python converted, else a string."""
    stripped = text.strip()
    if types == STRING:
        return json.dumps(text, ensure_ascii=False)
    try:
        value = loaded(stripped)
        if _allowed(value, types):
            return stripped
    except (ValueError, RecursionError):
        literal = _literal(stripped, types)
        if literal is not None:
            return literal
    return json.dumps(text, ensure_ascii=False)


def _literal(text: str, types: Types) -> str | None:
    """Return a literal of Python as JSON text, or None. Some templates write containers and booleans so."""
    if len(text) > _MAX_LITERAL or not text or text[0] not in "{[(TFN":
        return None
    try:
        value = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False, allow_nan=False) if _allowed(value, types) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _allowed(value: Any, types: Types) -> bool:
    if types is None:
        return True
    name = type_of(value)
    whole = name == "integer" or (isinstance(value, float) and value.is_integer())
    return name in types or (name == "integer" and "number" in types) or (whole and "integer" in types)
