"""Schemas of strict tools, checked before a request is queued."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ferrum.core.errors import InvalidGrammar, InvalidSchema, RequestError
from ferrum.core.output_format import Calls, Tool, ToolKind
from ferrum.core.values import shown
from ferrum.grammar.call_arguments import arguments_grammar
from ferrum.grammar.constraint_grammars import check_grammar
from ferrum.grammar.json_schema import checked_schema
from ferrum.grammar.lark import Lark, schema_grammar
from ferrum.grammar.schema_places import pointed


def check_strict(calls: Calls, tools: tuple[Tool, ...]) -> None:
    """Refuse strict tools whose schema the library cannot compile.

    Raises:
        RequestError: `param` is `tools`; the message has the tool and the JSON pointer.
    """
    for tool in tools:
        if tool.strict and tool.parameters and tool.kind is ToolKind.FUNCTION:
            error = _fault(calls, tool)
            if error is not None:
                raise error


@lru_cache(maxsize=512)
def _fault(calls: Calls, tool: Tool) -> RequestError | None:
    """Return why a strict tool cannot be enforced in a format; None if it can."""
    lark = Lark()
    try:
        source = lark.grammar(arguments_grammar(lark, calls, tool))
        reason = _reason(json.loads(tool.parameters))
        if not reason:
            check_grammar(source)
    except InvalidGrammar as error:
        reason = f"#: {error.message}"
    except RequestError as error:
        return error
    whole = f"the schema of the strict tool {shown(tool.name)}: {reason}"
    return InvalidSchema(whole, param="tools") if reason else None


def _reason(schema: Mapping[str, Any]) -> str:
    """Return why the library refuses a checked schema, after the pointer of the argument that it refuses alone."""
    whole = _refused(schema, schema)
    if not whole:
        return ""
    for name, each in schema.get("properties", {}).items():
        if isinstance(each, Mapping) and (reason := _refused(each, schema)):
            return f"#/properties/{pointed(name)}: {reason}"
    return f"#: {whole}"


def _refused(part: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return why the library refuses a part of a schema; empty if it does not."""
    try:
        check_grammar(schema_grammar({**part, "$defs": schema.get("$defs", {})}))
    except InvalidGrammar as error:
        return error.message
    return ""


@lru_cache(maxsize=512)
def enforced(calls: Calls, tool: Tool) -> Tool | None:
    """Return a tool as a strict one; None if its schema cannot be enforced in this format."""
    if tool.strict or tool.kind is ToolKind.CUSTOM or not tool.parameters:
        return tool
    try:
        schema = json.dumps(checked_schema(json.loads(tool.parameters), "tools"), ensure_ascii=False)
    except (InvalidSchema, RecursionError):
        return None
    strict = replace(tool, parameters=schema, strict=True)
    return strict if _fault(calls, strict) is None else None
