"""The forms of tools, calls and constraints in the OpenAPI document, which the dialects share.

Values are checked where they are read, for all dialects: in `grammar.tools`, whose fields have both, and
`core.structured_outputs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from ferrum.grammar import tools

Form: TypeAlias = dict[str, Any]
"""A JSON Schema."""


def form(properties: Mapping[str, Any], *required: str) -> Form:
    """Return the form of objects."""
    return {"type": "object", "properties": dict(properties), "required": list(required)}


def of_kind(kinds: str | Sequence[str | None], properties: Mapping[str, Any] | None = None, *required: str) -> Form:
    """Return the form of objects of a type, or of one of several types."""
    kind = {"const": kinds} if isinstance(kinds, str) else {"enum": list(kinds)}
    return form({"type": kind, **(properties or {})}, "type", *required)


def either(*forms: Form) -> Form:
    """Return the form of values that have one of some forms."""
    return forms[0] if len(forms) == 1 else {"anyOf": list(forms)}


def tool_list(of_tool: Form) -> Form:
    """Return the form of a list of tools."""
    return {"maxItems": tools.MAX_TOOLS, "items": of_tool}


TEXT: Final[Form] = {"type": "string"}
NULL: Final[Form] = {"type": "null"}
NAMED: Final[Mapping[str, Form]] = {"name": {"type": "string", "pattern": f"^{tools.NAME}$"}}
FUNCTION: Final[Mapping[str, Form]] = {**NAMED, **{name: dict(each.form) for name, each in tools.FUNCTION.items()}}
GRAMMAR: Final[Mapping[str, Form]] = {"syntax": {"enum": ["lark", "regex"]}, "definition": TEXT}
SCHEMA: Final[Form] = {"type": ["object", "boolean"]}


def custom(grammar: Form) -> Mapping[str, Form]:
    """Return the fields of a custom tool, which takes any text or one of a grammar."""
    described = {name: dict(each.form) for name, each in tools.CUSTOM.items()}
    return {**NAMED, **described, "format": either(of_kind("text"), grammar, NULL)}
