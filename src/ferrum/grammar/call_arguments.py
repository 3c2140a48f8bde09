"""The grammar of a call's arguments, in the spelling that templates render."""

from __future__ import annotations

import json
from typing import Any

from ferrum.core.errors import RequestError
from ferrum.core.output_format import Arguments, ArgumentStyle, Calls, CallStyle, Tool, ToolKind, ValueStyle
from ferrum.core.values import shown
from ferrum.formats.argument_types import STRING, ArgumentTypes, argument_types
from ferrum.formats.json_text import INPUT
from ferrum.grammar.custom_grammar import custom_grammar
from ferrum.grammar.lark import Lark, either, json_of, list_of, literal, optional, sequence
from ferrum.grammar.literal_grammar import JSON_CONSTANTS, PYTHON_CONSTANTS, Literals, StrictLiterals
from ferrum.grammar.tag_grammar import StrictTags, Tags


def arguments_grammar(lark: Lark, calls: Calls, tool: Tool) -> str:
    """Return an expression of a tool's arguments.

    Raises:
        RequestError: the schema of a strict tool, or the grammar of a custom one, cannot be enforced in this style;
            `param` is `tools`.
    """
    python = calls.style is CallStyle.PYTHONIC
    if python or calls.arguments.style is ArgumentStyle.GEMMA:
        if tool.strict and tool.parameters and tool.kind is ToolKind.FUNCTION:
            return StrictLiterals(lark, calls.arguments, tool, python=python).arguments()
        constants = (*JSON_CONSTANTS, *PYTHON_CONSTANTS) if python else JSON_CONSTANTS
        return Literals(lark, calls.arguments, python=python, constants=constants).arguments(tool)
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
        if tool.syntax == "regex":
            return sequence(head, tags.closed(grammar))
        return sequence(head, lark.rule(grammar), lark.text(arguments.value_close))
    if not tool.strict or not tool.parameters:
        return _any_order(lark, calls, tags, tool)
    return StrictTags(lark, calls.arguments, tags, tool).arguments()


def _any_order(lark: Lark, calls: Calls, tags: Tags, tool: Tool) -> str:
    """Return the arguments of a tool that is not strict: any number, in any order, with other names if they may be."""
    types = argument_types(tool)
    items = [_argument(lark, calls, tags, name, types) for name in (*types.names, *((None,) * (not types.closed)))]
    if not items:
        return tags.empty
    item = lark.rule(either(items))
    found = sequence(tags.key_open(first=True), list_of(item, tags.key_open(first=False)))
    return either([found, tags.empty]) if tags.empty else optional(found)


def _argument(lark: Lark, calls: Calls, tags: Tags, name: str | None, known: ArgumentTypes) -> str:
    """Return an argument from its key to its closing tag; `name` None: any that the schema does not name."""
    arguments = calls.arguments
    types = known.others if name is None else known.get(name)

    def head(mark: str) -> str:
        return tags.other_key(known.names, mark) if name is None else tags.key(name, mark)

    other = sequence(head(arguments.other_mark), _other_value(lark, arguments), lark.text(arguments.value_close))
    if arguments.values is ValueStyle.JSON or (types is not None and "string" not in types):
        return other
    text = sequence(head(arguments.string_mark), tags.text())
    return either([text, other]) if arguments.string_mark and types != STRING else text


def _other_value(lark: Lark, arguments: Arguments) -> str:
    """Return a value that is no string. Templates render some as Python writes them."""
    if arguments.values is ValueStyle.JSON:
        return json_of({}, arguments)
    python = Literals(lark, arguments, python=True, constants=PYTHON_CONSTANTS).any()
    return either([json_of({}, arguments), python])
