"""Tools of a request in OpenAI's form: checked, as `Tool`s for parser and grammar, and as templates describe them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from ferrum.core.errors import RequestError
from ferrum.core.output_format import Tool, ToolKind
from ferrum.core.values import shown
from ferrum.grammar.json_schema import checked_schema

MAX_NAME: Final = 128
MAX_TOOLS: Final = 1024
NAME: Final = f"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}"
"""Pattern of the names of tools."""
_INPUT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""How a template describes the one text that a custom tool takes."""


@dataclass(frozen=True, slots=True)
class ToolField:
    """A field of a client's tool.

    Attributes:
        kind: type of its values, which may be None too.
        words: for them, in errors.
        form: JSON Schema of its values.
    """

    kind: type[Any]
    words: str
    form: Mapping[str, Any]


CUSTOM: Final = {"description": ToolField(str, "a string", {"type": ["string", "null"]})}
FUNCTION: Final = {
    **CUSTOM,
    "parameters": ToolField(
        Mapping,
        "a JSON Schema object",
        {"type": ["object", "null"], "description": "JSON Schema of the arguments."},
    ),
    "strict": ToolField(
        bool,
        "true or false",
        {"type": ["boolean", "null"], "description": "Enforce the schema; else any JSON object."},
    ),
}
"""The fields of tools by their kind, besides the name and the format of custom tools."""

Mode: TypeAlias = Literal["auto", "none", "required"]
"""Whether calls are possible, impossible or required."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What a client chose among its tools.

    Attributes:
        tools: those that may be called, with the descriptions of all.
        mode: whether one must be called.
        named: the one that must be called, or None.
    """

    tools: Tools
    mode: Mode
    named: str | None


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    Attributes:
        tools: for parser and grammar.
        descriptions: for the chat template, as the client sent them; custom tools as functions of one text.
    """

    tools: tuple[Tool, ...] = ()
    descriptions: tuple[Mapping[str, Any], ...] = ()

    def choice(self, choice: str | Mapping[str, Any] | None, param: str = "tool_choice") -> ToolChoice:
        """Return what a client chose among the tools.

        Args:
            choice: `auto` (also None), `none`, `required`, a tool as `{"type": "function", "function": {"name": ...}}`
                or `{"name": ...}`, or several as `{"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}`.
            param: name of the choice in errors.

        Raises:
            RequestError: another form, a tool that there is not, or calls required without tools.
        """
        allowed, mode, named = _chosen(choice, param)
        names = [each.name for each in self.tools]
        for name in (*allowed, *(() if named is None else (named,))):
            if name not in names:
                raise RequestError(f"names the tool {name!r}, which is not among the tools", param=param)
        if mode == "required" and not names:
            raise RequestError("requires tools", param=param)
        return ToolChoice(self.only(allowed) if allowed else self, mode, named)

    def only(self, names: Sequence[str]) -> Tools:
        """Return the same descriptions with some of the tools, which alone may be called."""
        return Tools(tuple(each for each in self.tools if each.name in names), self.descriptions)


NO_CHOICE: Final = ToolChoice(Tools(), "auto", None)


def tools_of(described: Sequence[Mapping[str, Any]], param: str = "tools") -> Tools:
    """Return the tools that a client describes.

    Args:
        described: each `{"type": "function", "function": {...}}`, or `custom` in both places.
        param: name of the list in errors.

    Raises:
        RequestError: a tool is malformed, has a name twice, or a strict one has a schema that cannot be enforced.
    """
    if not isinstance(described, list | tuple):
        raise RequestError(f"must be a list of objects, not {shown(described)}", param=param)
    if len(described) > MAX_TOOLS:
        raise RequestError(f"has {len(described)} entries, at most {MAX_TOOLS} are served", param=param)
    tools: list[Tool] = []
    descriptions: list[Mapping[str, Any]] = []
    for place, each in enumerate(described):
        tool, description = _tool(each, f"{param}[{place}]")
        if any(tool.name == other.name for other in tools):
            raise RequestError(f"{tool.name!r} is the name of two tools", param=f"{param}[{place}]")
        tools.append(tool)
        descriptions.append(description)
    return Tools(tuple(tools), tuple(descriptions))


def _tool(described: Any, where: str) -> tuple[Tool, Mapping[str, Any]]:
    if not isinstance(described, Mapping):
        raise RequestError(f"must be an object, not {shown(described)}", param=where)
    kind = described.get("type", "function")
    if kind not in ("function", "custom"):
        raise RequestError(f"must be 'function' or 'custom', not {shown(kind)}", param=f"{where}.type")
    inner, place = described.get(kind), f"{where}.{kind}"
    if not isinstance(inner, Mapping):
        raise RequestError(f"must be an object, not {shown(inner)}", param=place)
    name = inner.get("name")
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        reason = f"must be 1 to {MAX_NAME} letters, digits, '_', '-' or '.', not {shown(name)}"
        raise RequestError(reason, param=f"{place}.name")
    for own, known in (FUNCTION if kind == "function" else CUSTOM).items():
        if inner.get(own) is not None and not isinstance(inner[own], known.kind):
            raise RequestError(f"must be {known.words}, not {shown(inner[own])}", param=f"{place}.{own}")
    return (_function if kind == "function" else _custom)(name, described, inner, place)


def _function(
    name: str, described: Mapping[str, Any], function: Mapping[str, Any], where: str
) -> tuple[Tool, Mapping[str, Any]]:
    schema, strict = function.get("parameters"), function.get("strict")
    if strict and schema:
        schema = checked_schema(schema, f"{where}.parameters")
    text = json.dumps(schema, ensure_ascii=False) if schema else ""
    return Tool(name=name, parameters=text, strict=bool(strict)), described


def _custom(
    name: str, described: Mapping[str, Any], custom: Mapping[str, Any], where: str
) -> tuple[Tool, Mapping[str, Any]]:
    form = custom.get("format") or {"type": "text"}
    if not isinstance(form, Mapping) or form.get("type") not in ("text", "grammar"):
        raise RequestError(f"must be of type 'text' or 'grammar', not {shown(form)}", param=f"{where}.format")
    grammar = form.get("grammar", form) if form["type"] == "grammar" else {"syntax": "", "definition": ""}
    place = f"{where}.format.grammar"
    if not isinstance(grammar, Mapping) or not isinstance(grammar.get("definition"), str):
        raise RequestError("must be an object with a string `definition`", param=place)
    if grammar.get("syntax") not in ("", "lark", "regex"):
        raise RequestError(f"must be 'lark' or 'regex', not {shown(grammar.get('syntax'))}", param=f"{place}.syntax")
    tool = Tool(name=name, kind=ToolKind.CUSTOM, syntax=grammar["syntax"], definition=grammar["definition"])
    note = f"\n\nThe input is a text of this grammar ({tool.syntax}):\n{tool.definition}" if tool.syntax else ""
    function = {"name": name, "description": f"{custom.get('description') or ''}{note}".strip(), "parameters": _INPUT}
    return tool, {
        **{k: v for k, v in described.items() if k not in ("type", "custom")},
        "type": "function",
        "function": function,
    }


def _chosen(choice: Any, param: str) -> tuple[Sequence[str], Mode, str | None]:
    """Return the only tools that may be called (empty: all), the mode, and the tool that must be called."""
    if choice is None or isinstance(choice, str):
        if choice not in (None, "none", "auto", "required"):
            raise RequestError(f"must be 'none', 'auto', 'required' or an object, not {shown(choice)}", param=param)
        return (), cast(Mode, choice or "auto"), None
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "allowed_tools" and isinstance(inner := choice.get("allowed_tools"), Mapping):
        listed, mode = inner.get("tools"), inner.get("mode")
        named = [_reference(each) for each in listed] if isinstance(listed, list) else []
        if mode not in ("auto", "required") or not named or None in named:
            reason = "needs a mode of 'auto' or 'required', and a list of tools by type and name"
            raise RequestError(reason, param=f"{param}.allowed_tools")
        return [each for each in named if each is not None], mode, None
    name = _reference(choice)
    if name is None:
        raise RequestError("must name a tool: {'type': 'function', 'function': {'name': NAME}}", param=param)
    return (), "required", name


def _reference(reference: Any) -> str | None:
    """Return the name in a reference to a tool, or None."""
    if not isinstance(reference, Mapping):
        return None
    kind = reference.get("type")
    inner = reference.get(kind) if isinstance(kind, str) else None
    name = (inner if isinstance(inner, Mapping) else reference).get("name")
    return name if isinstance(name, str) else None
