"""Grammars of a tool's arguments in the styles of formats, in the spelling that templates render."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ferrum.core.errors import RequestError
from ferrum.core.output_format import Arguments, ArgumentStyle, Calls, CallStyle, Tool, ToolKind, ValueStyle
from ferrum.core.values import shown
from ferrum.formats.argument_types import STRING, Types, argument_types, resolved
from ferrum.formats.custom_grammar import custom_grammar
from ferrum.formats.grammar_values import JSON_CONSTANTS, PYTHON_CONSTANTS, Literals
from ferrum.formats.json_text import INPUT
from ferrum.formats.lark import Lark, either, in_order, json_of, list_of, literal, optional, sequence

_KEY = r'/[^<>="\s]+/'
_CHECKED = {"type", "description", "title", "default", "examples", "enum", "const", "minLength", "maxLength", "pattern"}
"""Keywords of a schema of strings that a tagged value is held to, or that constrain nothing."""


def arguments_grammar(lark: Lark, calls: Calls, tool: Tool) -> str:
    """Return an expression of a tool's arguments.

    Raises:
        RequestError: the schema of a strict tool, or the grammar of a custom one, cannot be enforced in this style;
            `param` is `tools`.
    """
    if calls.style is CallStyle.PYTHONIC:
        constants = (*JSON_CONSTANTS, *PYTHON_CONSTANTS)
        return Literals(lark, calls.arguments, python=True, constants=constants).arguments(tool)
    if calls.arguments.style is ArgumentStyle.GEMMA:
        return Literals(lark, calls.arguments, python=False).arguments(tool)
    if calls.arguments.style is ArgumentStyle.TAGGED:
        return _tagged(lark, calls.arguments, tool)
    if tool.kind is ToolKind.FUNCTION:
        return json_of(object_schema(tool), calls.arguments)
    grammar = custom_grammar(tool, escaped=True)
    if grammar is None:
        schema = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
        return json_of({**schema, "additionalProperties": False}, calls.arguments)
    opening = literal(f'{{"{INPUT}"{calls.arguments.key_separator}"')
    return sequence(opening, lark.rule(grammar), literal('"}'))


def object_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments: its own if it is strict, else that of any object."""
    if not tool.strict or not tool.parameters:
        return {"type": "object"}
    schema = json.loads(tool.parameters)
    if not isinstance(schema, dict):
        raise RequestError(f"the schema of the strict tool {shown(tool.name)} must be an object", param="tools")
    return {**schema, "type": "object"}


def _tagged(lark: Lark, arguments: Arguments, tool: Tool) -> str:
    """Return tagged arguments: in the schema's order for a strict tool, else in any order."""
    if tool.kind is ToolKind.CUSTOM:
        grammar = custom_grammar(tool, escaped=False)
        head = lark.text(_head(arguments, INPUT, is_string=True))
        if grammar is None:
            return sequence(head, lark.until(arguments.value_close.lstrip()))
        return sequence(head, lark.rule(grammar), lark.text(arguments.value_close))
    schema = object_schema(tool) if tool.strict else json.loads(tool.parameters or "{}")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not properties:
        return _several(lark, "" if tool.strict else _any_argument(lark, arguments), arguments)
    required = schema.get("required", ())
    items: list[tuple[str, bool]] = []
    for name, each in properties.items():
        is_string = argument_types(tool).get(name) == STRING and arguments.values is ValueStyle.RAW
        head = lark.text(_head(arguments, name, is_string=is_string))
        items.append((sequence(head, _value(lark, arguments, tool, name, each)), name in required))
    if not tool.strict:
        return _several(lark, either(item for item, _ in items), arguments)
    whole = in_order(lark, items, lark.text(arguments.between))
    return whole if required or not arguments.empty else either([whole, lark.text(arguments.empty)])


def _several(lark: Lark, item: str, arguments: Arguments) -> str:
    """Return any number of items, or the text that stands for none."""
    empty = lark.text(arguments.empty)
    if not item:
        return empty
    items = list_of(lark.rule(item), lark.text(arguments.between))
    return either([items, empty]) if empty else optional(items)


def _head(arguments: Arguments, name: str, *, is_string: bool) -> str:
    mark = arguments.string_mark if is_string else arguments.other_mark
    return f"{arguments.key_open}{name}{arguments.key_close}{mark}{arguments.value_open}"


def _any_argument(lark: Lark, arguments: Arguments) -> str:
    """Return an argument with any key and any value."""
    mark = lark.text(arguments.string_mark)
    head = sequence(
        lark.text(arguments.key_open), _KEY, lark.text(arguments.key_close), mark, lark.text(arguments.value_open)
    )
    return sequence(head, lark.until(arguments.value_close.lstrip()))


def _value(lark: Lark, arguments: Arguments, tool: Tool, name: str, schema: Any) -> str:
    """Return a value with its closing tag."""
    close = lark.text(arguments.value_close)
    types = argument_types(tool).get(name)
    if arguments.values is ValueStyle.JSON or (types is not None and "string" not in types):
        return sequence(_other_value(lark, arguments, tool, schema, types), close)
    if not tool.strict or not isinstance(schema, dict):
        return lark.until(arguments.value_close.lstrip())
    whole = json.loads(tool.parameters)
    schema = resolved(schema, whole)
    if types == STRING:
        return _strict_string(lark, arguments, tool, name, schema)
    parts = [resolved(each, whole) for each in schema.get("anyOf", ()) if isinstance(each, dict)]
    strings = [each for each in parts if each.get("type") == "string"] or [schema]
    if types != frozenset({"string", "null"}) or len(strings) > 1:
        raise RequestError(
            f"the argument {shown(name)} of the strict tool {shown(tool.name)} may be a string or something else, "
            "which this model's format of calls cannot enforce (give it one type, or leave out strict)",
            param="tools",
        )
    allowed = {key: each for key, each in strings[0].items() if key != "anyOf"}
    if isinstance(allowed.get("enum"), list):
        allowed["enum"] = [each for each in allowed["enum"] if each is not None]
    return either([sequence(lark.text("null"), close), _strict_string(lark, arguments, tool, name, allowed)])


def _other_value(lark: Lark, arguments: Arguments, tool: Tool, schema: Any, types: Types) -> str:
    """Return a value that is no string. Templates render some as Python writes them."""
    if arguments.values is ValueStyle.JSON:
        return json_of(_nested(tool, schema) if tool.strict else {}, arguments)
    if not tool.strict:
        python = Literals(lark, arguments, python=True, constants=PYTHON_CONSTANTS).any()
        return either([json_of({}, arguments), python])
    options = [json_of(_nested(tool, schema), arguments)]
    if types == frozenset({"boolean"}) and "enum" not in schema and "const" not in schema:
        options += [literal("True"), literal("False")]
    return either(options)


def _nested(tool: Tool, schema: Any) -> dict[str, Any]:
    """Return the schema of an argument with the definitions of the whole."""
    whole = json.loads(tool.parameters)
    definitions = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
    return {**definitions, **schema} if isinstance(schema, dict) else definitions


def _strict_string(lark: Lark, arguments: Arguments, tool: Tool, name: str, schema: Mapping[str, Any]) -> str:
    """Return a string of a strict tool, which is written without quotes."""
    close = lark.text(arguments.value_close)
    unknown = sorted(set(schema) - _CHECKED)
    if unknown:
        raise RequestError(
            f"{shown(unknown[0])} of the argument {shown(name)} of the strict tool {shown(tool.name)} cannot be "
            "enforced in this model's format of calls (leave it out, or leave out strict)",
            param="tools",
        )
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(allowed, list):
        return sequence(either(lark.text(each) or '""' for each in allowed if isinstance(each, str)), close)
    low, high = schema.get("minLength", 0), schema.get("maxLength", "")
    if low or high != "":
        body = f"/(?s:[^<]){{{low},{high}}}/"
    elif "pattern" in schema:
        body = "/[^<]*/"
    else:
        return lark.until(arguments.value_close.lstrip())
    if "pattern" in schema:
        pattern = schema["pattern"]
        before = "" if pattern.startswith("^") else "(?s:.*)"
        after = "" if pattern.endswith("$") else "(?s:.*)"
        inside = pattern.removeprefix("^").removesuffix("$").replace("/", "\\/")
        body = f"{body} & /{before}(?:{inside}){after}/"
    return sequence(lark.rule(body, terminal=True), close)
