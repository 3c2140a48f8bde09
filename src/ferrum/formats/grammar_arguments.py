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
from ferrum.formats.grammar_tags import Tags
from ferrum.formats.grammar_values import JSON_CONSTANTS, PYTHON_CONSTANTS, Literals
from ferrum.formats.json_text import INPUT
from ferrum.formats.lark import Lark, either, in_order, json_of, list_of, literal, optional, sequence

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
        return _tagged(lark, calls, tool)
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


def call_close(lark: Lark, calls: Calls) -> str:
    """Return an expression of what ends a call."""
    tagged = calls.style is CallStyle.NAMED and calls.arguments.style is ArgumentStyle.TAGGED
    return Tags(lark, calls).call_close() if tagged else lark.text(calls.close)


def _tagged(lark: Lark, calls: Calls, tool: Tool) -> str:
    """Return tagged arguments: in the schema's order for a strict tool, else in any order."""
    arguments, tags = calls.arguments, Tags(lark, calls)
    if tool.kind is ToolKind.CUSTOM:
        grammar = custom_grammar(tool, escaped=False)
        head = sequence(tags.key_open(first=True), tags.key(INPUT, arguments.string_mark))
        if grammar is None:
            return sequence(head, tags.text())
        return sequence(head, lark.rule(grammar), lark.text(arguments.value_close))
    if not tool.strict:
        return _any_order(lark, calls, tags, tool)
    schema = object_schema(tool)
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return tags.empty
    required = schema.get("required", ())
    items = [(_argument(lark, calls, tags, tool, name, each), name in required) for name, each in properties.items()]
    whole = in_order(lark, items, tags.key_open(first=False), tags.key_open(first=True))
    return whole if required or not tags.empty else either([whole, tags.empty])


def _any_order(lark: Lark, calls: Calls, tags: Tags, tool: Tool) -> str:
    """Return the arguments of a tool that is not strict: any number, in any order, with other names if they may be."""
    types = argument_types(tool)
    items = [_argument(lark, calls, tags, tool, name, {}) for name in types.names]
    if not types.closed:
        items.append(_argument(lark, calls, tags, tool, None, {}))
    if not items:
        return tags.empty
    item = lark.rule(either(items))
    found = sequence(tags.key_open(first=True), list_of(item, tags.key_open(first=False)))
    return either([found, tags.empty]) if tags.empty else optional(found)


def _argument(lark: Lark, calls: Calls, tags: Tags, tool: Tool, name: str | None, schema: Any) -> str:
    """Return an argument from its key to its closing tag; `name` None: any that the schema does not name."""
    arguments, known = calls.arguments, argument_types(tool)
    types = known.others if name is None else known.get(name)

    def head(mark: str) -> str:
        return tags.other_key(known.names, mark) if name is None else tags.key(name, mark)

    close = lark.text(arguments.value_close)
    text = _text(lark, arguments, tags, tool, name or "", schema, types)
    other = _other_value(lark, arguments, tool, schema, types)
    null = tool.strict and types is not None and "string" in types
    if null and types != STRING:
        other = lark.text("null")
    if arguments.values is ValueStyle.JSON or not text:
        return sequence(head(arguments.other_mark), other, close)
    if types == STRING:
        return sequence(head(arguments.string_mark), text)
    if arguments.string_mark:
        marked = sequence(head(arguments.other_mark), other, close)
        return either([sequence(head(arguments.string_mark), text), marked])
    return sequence(head(""), either([sequence(other, close), text]) if null else text)


def _text(lark: Lark, arguments: Arguments, tags: Tags, tool: Tool, name: str, schema: Any, types: Types) -> str:
    """Return a string, which is written without quotes, with its closing tag; empty if the value is none."""
    if arguments.values is ValueStyle.JSON or (types is not None and "string" not in types):
        return ""
    if not tool.strict or not isinstance(schema, dict):
        return tags.text()
    whole = json.loads(tool.parameters)
    schema = resolved(schema, whole)
    if types == STRING:
        return _strict_string(lark, arguments, tags, tool, name, schema)
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
    return _strict_string(lark, arguments, tags, tool, name, allowed)


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


def _strict_string(
    lark: Lark, arguments: Arguments, tags: Tags, tool: Tool, name: str, schema: Mapping[str, Any]
) -> str:
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
        return tags.text()
    if "pattern" in schema:
        pattern = schema["pattern"]
        before = "" if pattern.startswith("^") else "(?s:.*)"
        after = "" if pattern.endswith("$") else "(?s:.*)"
        inside = pattern.removeprefix("^").removesuffix("$").replace("/", "\\/")
        body = f"{body} & /{before}(?:{inside}){after}/"
    return sequence(lark.rule(body, terminal=True), close)
