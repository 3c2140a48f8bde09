"""Descriptions of tools as chat templates read them: without nulls, and whole where a template reads what is absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Described = dict[str, Any]
"""A tool in OpenAI's form, or a function without its envelope; JSON values only."""

_VALUES: Final = ("const", "default", "enum", "example", "examples")
"""Keywords whose values are data, where null has a meaning."""

_SCHEMAS_BY_NAME: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values are schemas by name."""


def without_nulls(tools: Sequence[Described]) -> list[Described]:
    """Return tools without null fields, which many templates would write as `None`, and with their type."""
    made = []
    for tool in tools:
        enveloped = isinstance(tool.get("function"), dict)
        kept = _absent_nulls(_function(tool))
        if isinstance(kept.get("parameters"), dict):
            kept["parameters"] = _resolved(kept["parameters"])
        made.append({"type": "function", **_absent_nulls(tool), "function": kept} if enveloped else kept)
    return made


def whole(tools: Sequence[Described]) -> list[Described]:
    """Return tools with a description and parameters, as OpenAI's, Anthropic's and Ollama's clients may omit them.

    Schemas mean the same in other words: `{}` for `true`, and `anyOf` for a list of types.
    """
    made = []
    for tool in tools:
        function = _function(tool)
        parameters = _whole_schema(function.get("parameters") or {})
        parameters = {"type": "object", "properties": {}, **(parameters if isinstance(parameters, dict) else {})}
        function = {"description": "", **function, "parameters": parameters}
        made.append({**tool, "function": function} if isinstance(tool.get("function"), dict) else function)
    return made


def _function(tool: Described) -> Described:
    function = tool.get("function")
    return function if isinstance(function, dict) else tool


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the definition that it refers to: many templates write `properties` only."""
    kind, _, name = str(schema.get("$ref", "")).removeprefix("#/").partition("/")
    definitions = schema.get(kind) if kind in ("$defs", "definitions") else None
    found = definitions.get(name) if isinstance(definitions, dict) and "properties" not in schema else None
    if not isinstance(found, dict) or "$ref" in found:
        return schema
    return {**found, **{key: value for key, value in schema.items() if key != "$ref"}}


def _absent_nulls(schema: Any) -> Any:
    """Return a schema, or a tool with one, without null fields."""
    if isinstance(schema, list):
        return [_absent_nulls(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    fields: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _VALUES:
            fields[name] = value
        elif name in _SCHEMAS_BY_NAME and isinstance(value, dict):
            fields[name] = {key: _absent_nulls(each) for key, each in value.items()}
        elif value is not None:
            fields[name] = _absent_nulls(value)
    return fields


def _whole_schema(schema: Any) -> Any:
    """Return a schema without booleans in the place of schemas, lists of types, and the type `null`."""
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    if not isinstance(schema, Mapping):
        return schema
    whole_schema: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _SCHEMAS_BY_NAME and isinstance(value, dict):
            whole_schema[name] = {key: _whole_schema(each) for key, each in value.items()}
        elif name in ("items", "not", "if", "then", "else", "contains", "propertyNames"):
            whole_schema[name] = _whole_schema(value)
        elif name in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            whole_schema[name] = [_whole_schema(each) for each in value]
        else:
            whole_schema[name] = value
    types = whole_schema.get("type")
    if isinstance(types, list) and "anyOf" not in whole_schema:
        del whole_schema["type"]
        whole_schema["anyOf"] = [_whole_schema({"type": each}) for each in types]
    elif types == "null":
        del whole_schema["type"]
        whole_schema["const"] = None
    return whole_schema
