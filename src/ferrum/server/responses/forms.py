"""The forms of items, tools and formats in the OpenAPI document; they are checked where they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ferrum.grammar.tools import MAX_TOOLS

_TEXT: Final[dict[str, Any]] = {"type": "string"}
_CALL_ID: Final[dict[str, Any]] = {"type": ["string", "null"]}
_NAME: Final[dict[str, Any]] = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}
_ANY_TEXT: Final[dict[str, Any]] = {"type": ["string", "null"]}


def _object(kinds: str | Sequence[str], properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    """Return the form of objects of a type, or of one of several types."""
    kind = {"const": kinds} if isinstance(kinds, str) else {"enum": list(kinds)}
    return {"type": "object", "properties": {"type": kind, **properties}, "required": ["type", *required]}


_PARTS: Final[dict[str, Any]] = {
    "type": "array",
    "items": {
        "anyOf": [
            _object(("input_text", "output_text", "text"), {"text": _TEXT}, "text"),
            _object("refusal", {"refusal": _TEXT}, "refusal"),
        ]
    },
}
_CONTENT: Final[dict[str, Any]] = {"anyOf": [_TEXT, _PARTS]}
_RESULTS: Final = (
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
)
REFERENCE: Final = "item_reference"


def _others(*kinds: str) -> dict[str, Any]:
    """Return the form of objects of any other type."""
    kind = {"type": "string", "not": {"enum": list(kinds)}}
    return {"type": "object", "properties": {"type": kind}, "required": ["type"]}


_FUNCTION: Final[dict[str, Any]] = _object(
    "function",
    {
        "name": _NAME,
        "description": _ANY_TEXT,
        "parameters": {"type": ["object", "null"]},
        "strict": {"type": ["boolean", "null"]},
    },
    "name",
)
_CUSTOM: Final[dict[str, Any]] = _object(
    "custom",
    {
        "name": _NAME,
        "description": _ANY_TEXT,
        "format": {
            "anyOf": [
                _object("text", {}),
                _object(
                    "grammar",
                    {"syntax": {"enum": ["lark", "regex"]}, "definition": _TEXT},
                    "syntax",
                    "definition",
                ),
                {"type": "null"},
            ]
        },
    },
    "name",
)
_KNOWN: Final = (_FUNCTION, _CUSTOM)
_ALL_TOOLS: Final[dict[str, Any]] = {
    "anyOf": [
        *_KNOWN,
        _object(
            "namespace",
            {
                "name": _NAME,
                "tools": {"type": "array", "items": {"anyOf": [*_KNOWN, _others("function", "custom")]}},
            },
            "name",
            "tools",
        ),
        _others("function", "custom", "namespace"),
    ]
}
TOOLS: Final[dict[str, Any]] = {"maxItems": MAX_TOOLS, "items": _ALL_TOOLS}
_TOOL_LIST: Final[dict[str, Any]] = {"tools": {"type": "array", "items": _ALL_TOOLS}}
_ITEMS: Final[Sequence[dict[str, Any]]] = (
    {
        "type": "object",
        "properties": {
            "type": {"enum": ["message", None]},
            "role": {"enum": ["system", "developer", "user", "assistant"]},
            "content": _CONTENT,
        },
        "required": ["role", "content"],
    },
    _object("function_call", {"name": _TEXT}, "name"),
    _object("custom_tool_call", {"name": _TEXT, "input": _TEXT}, "name", "input"),
    _object(_RESULTS, {"call_id": _CALL_ID, "id": _CALL_ID}),
    _object("tool_search_output", {"call_id": _CALL_ID, "id": _CALL_ID, **_TOOL_LIST}),
    _object("additional_tools", _TOOL_LIST),
    {"type": "object", "properties": {"type": {"enum": [REFERENCE, None]}, "id": _TEXT}, "required": ["id"]},
    _others(
        *("message", "function_call", "custom_tool_call", *_RESULTS),
        *("tool_search_output", "additional_tools", REFERENCE),
    ),
)
INPUT: Final[dict[str, Any]] = {"anyOf": [{"type": "null"}, _TEXT, {"type": "array", "items": {"anyOf": list(_ITEMS)}}]}
_CHOSEN: Final[dict[str, Any]] = {
    "anyOf": [_object(("function", "custom", "namespace"), {"name": _NAME}, "name"), _object("tool_search", {})]
}
TOOL_CHOICE: Final[dict[str, Any]] = {
    "anyOf": [
        {"enum": ["none", "auto", "required", None]},
        _CHOSEN,
        _object(
            "allowed_tools",
            {"mode": {"enum": ["auto", "required"]}, "tools": {"type": "array", "items": _CHOSEN, "minItems": 1}},
            "mode",
            "tools",
        ),
    ]
}
FORMAT: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "null"},
        _object(("text", "json_object"), {}),
        _object("json_schema", {"schema": {"type": ["object", "boolean"]}}, "schema"),
    ]
}
