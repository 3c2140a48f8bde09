"""Schemas of tools that must be called: enforced as if the tools were strict, where they can be."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache

from ferrum.core.errors import RequestError
from ferrum.core.output_format import Calls, Tool, ToolKind
from ferrum.formats.grammar_arguments import arguments_grammar
from ferrum.formats.lark import Lark
from ferrum.formats.patterns import Markers
from ferrum.structured.json_schema import checked_schema
from ferrum.structured.sources import check_source

_NO_MARKERS = Markers({}, {}, frozenset(), {})


def forced_tools(calls: Calls, tools: tuple[Tool, ...], named: str | None) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """Return tools as they are enforced in a call that must come, and the names of those whose schema is not.

    Args:
        calls: of the model's format.
        named: the tool that must be called; None: any of them.
    """
    found = {each.name: _enforced(calls, each) for each in tools if named in (None, each.name)}
    free = tuple(name for name, tool in found.items() if tool is None)
    return tuple(found.get(each.name) or each for each in tools), free


@lru_cache(maxsize=512)
def _enforced(calls: Calls, tool: Tool) -> Tool | None:
    """Return a tool as a strict one; None if its schema cannot be enforced in this format."""
    if tool.strict or tool.kind is ToolKind.CUSTOM or not tool.parameters:
        return tool
    lark = Lark(_NO_MARKERS)
    try:
        schema = json.dumps(checked_schema(json.loads(tool.parameters), "tools"), ensure_ascii=False)
        strict = replace(tool, parameters=schema, strict=True)
        check_source(lark.source(arguments_grammar(lark, calls, strict)))
    except (RequestError, RecursionError):
        return None
    return strict
