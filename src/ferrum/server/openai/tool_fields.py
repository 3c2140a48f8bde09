"""The fields of a chat about tools and reasoning: their forms in the document, and `ChatOptions` from them.

Tools themselves are checked in `grammar.tools`, for all dialects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ferrum.client.chat_prompt import ChatOptions
from ferrum.grammar.tools import MAX_TOOLS, tools_of
from ferrum.server.common.error_replies import invalid

if TYPE_CHECKING:
    from ferrum.server.openai.bodies import ChatRequest

_NAMED: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}},
    "required": ["name"],
}
_FUNCTION: Final[dict[str, Any]] = {
    **_NAMED,
    "properties": {
        **_NAMED["properties"],
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"], "description": "JSON Schema of the arguments."},
        "strict": {"type": ["boolean", "null"], "description": "Enforce the schema; else any JSON object."},
    },
}
_GRAMMAR: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"syntax": {"enum": ["lark", "regex"]}, "definition": {"type": "string"}},
    "required": ["syntax", "definition"],
}
_CUSTOM: Final[dict[str, Any]] = {
    **_NAMED,
    "properties": {
        **_NAMED["properties"],
        "description": {"type": ["string", "null"]},
        "format": {
            "anyOf": [
                {"properties": {"type": {"const": "text"}}, "required": ["type"]},
                {
                    "properties": {"type": {"const": "grammar"}, "grammar": _GRAMMAR},
                    "required": ["type", "grammar"],
                },
                {"type": "null"},
            ]
        },
    },
}


def _typed(kind: str, form: Mapping[str, Any]) -> dict[str, Any]:
    return {"properties": {"type": {"const": kind}, kind: form}, "required": ["type", kind]}


TOOLS: Final[dict[str, Any]] = {
    "maxItems": MAX_TOOLS,
    "items": {"type": "object", "anyOf": [_typed("function", _FUNCTION), _typed("custom", _CUSTOM)]},
}
TOOL_CHOICE: Final[dict[str, Any]] = {
    "anyOf": [
        {"enum": ["none", "auto", "required", None]},
        {
            "type": "object",
            "anyOf": [
                _typed("function", _NAMED),
                _typed("custom", _NAMED),
                _typed(
                    "allowed_tools",
                    {
                        "type": "object",
                        "properties": {"mode": {"enum": ["auto", "required"]}, "tools": {"type": "array"}},
                        "required": ["mode", "tools"],
                    },
                ),
            ],
        },
    ]
}
FUNCTIONS: Final[dict[str, Any]] = {"maxItems": MAX_TOOLS, "items": _FUNCTION}
FUNCTION_CALL: Final[dict[str, Any]] = {"anyOf": [{"enum": ["none", "auto", None]}, _NAMED]}
"""The forms of the fields in the document."""


def chat_options(body: ChatRequest) -> ChatOptions:
    """Return what a body asks of calls and reasoning. Raises RequestError, which names the field."""
    for each, newer in (("functions", "tools"), ("function_call", "tool_choice")):
        if getattr(body, each) not in (None, []) and getattr(body, newer) not in (None, []):
            raise invalid(each, f"cannot be combined with {newer}")
    older = bool(body.functions)
    described = [{"type": "function", "function": each} for each in body.functions or ()] if older else body.tools
    tools = tools_of(described or (), "functions" if older else "tools")
    field = "function_call" if older or body.function_call is not None else "tool_choice"
    return ChatOptions(
        choice=tools.choice(getattr(body, field), field),
        parallel=not older and body.parallel_tool_calls is not False,
        budget=body.thinking_token_budget,
    )
