"""The JSON value of an argument that a format writes as plain text, by the tool's schema."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from ferrum.core.output_format import Tool, ToolKind
from ferrum.formats.json_text import INPUT

STRING: Final = frozenset({"string"})
_MAX_DEPTH: Final = 8
_MAX_LITERAL: Final = 1 << 16
"""Characters of a literal of Python that is read; parsing one costs 100 times its text."""

Types = frozenset[str] | None
"""Names of JSON types that a value may have; None: any."""


@lru_cache(maxsize=512)
def argument_types(tool: Tool) -> Mapping[str, Types]:
    """Return the types of a tool's arguments by name, as far as its schema says them."""
    if tool.kind is ToolKind.CUSTOM:
        return {INPUT: STRING}
    try:
        schema = json.loads(tool.parameters or "{}")
    except (ValueError, RecursionError):
        return {}
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: _types(each, schema, 0) for name, each in properties.items()}


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> Types:
    """Return the types of a schema."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    schema = resolved(schema, root)
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(each for each in kind if isinstance(each, str))
    if isinstance(schema.get("enum"), list):
        return frozenset(type_of(each) for each in schema["enum"])
    if "const" in schema:
        return frozenset({type_of(schema["const"])})
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            found = [_types(each, root, depth + 1) for each in schema[key]]
            return None if None in found else frozenset().union(*(each for each in found if each is not None))
    return None


def resolved(schema: Mapping[str, Any], root: Any) -> Mapping[str, Any]:
    """Return a schema with what it refers to, or what its only part of `allOf` says, in place."""
    for _ in range(_MAX_DEPTH):
        parts = schema.get("allOf")
        if isinstance(schema.get("$ref"), str):
            other, key = _referred(schema["$ref"], root), "$ref"
        elif isinstance(parts, list) and len(parts) == 1:
            other, key = parts[0], "allOf"
        else:
            break
        if not isinstance(other, dict):
            break
        schema = {**other, **{name: each for name, each in schema.items() if name != key}}
    return schema


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


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def typed_json(text: str, types: Types) -> str:
    """Return a value as JSON text: JSON that the types allow as it is, a literal of Python converted, else a string."""
    stripped = text.strip()
    if types == STRING:
        return json.dumps(text, ensure_ascii=False)
    try:
        value = json.loads(stripped, parse_constant=_no_constant)
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
