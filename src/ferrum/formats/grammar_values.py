"""Grammars of arguments as literals: Python's keyword arguments, and Gemma's objects."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.core.output_format import Arguments, Tool, ToolKind
from ferrum.core.values import shown
from ferrum.formats.argument_types import argument_types
from ferrum.formats.custom_grammar import custom_grammar
from ferrum.formats.json_text import INPUT
from ferrum.formats.lark import Lark, either, in_order, literal, optional, sequence

_DOUBLE: Final = r'"([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_SINGLE: Final = r"'([^'\\\x00-\x1f]|\\(['\\\/bfnrt]|u[0-9a-fA-F]{4}))*'"
_NUMBER: Final = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/"
_INTEGER: Final = r"/-?(0|[1-9][0-9]*)/"
_NAME: Final = r"""/[^\s:=,;(){}\[\]"'<>|]([^:=,(){}\[\]<>|\r\n]*[^\s:=,(){}\[\]<>|])?/"""
"""What a reader takes for a name without quotes."""
_BARE: Final = re.compile(_NAME[1:-1])
JSON_CONSTANTS: Final = ("true", "false", "null")
PYTHON_CONSTANTS: Final = ("True", "False", "None")
_CHECKED: Final = {
    *("type", "properties", "required", "items", "enum", "const", "description", "title", "default", "examples"),
    *("additionalProperties", "$schema", "$id"),
}


class Literals:
    """Rules of values in one grammar.

    Args:
        python: Python's keyword arguments, else Gemma's object.
        constants: how true, false and null may be spelled.
    """

    def __init__(
        self, lark: Lark, arguments: Arguments, *, python: bool, constants: tuple[str, ...] = JSON_CONSTANTS
    ) -> None:
        self._lark = lark
        self._python = python
        self._arguments = arguments
        self._comma = literal(", " if python else arguments.item_separator)
        self._constants = constants

    def arguments(self, tool: Tool) -> str:
        """Return an expression of a tool's arguments with their brackets. Raises RequestError."""
        opening, closing = (literal("("), literal(")")) if self._python else (literal("{"), literal("}"))
        equals = literal("=" if self._python else self._arguments.key_separator)
        if tool.kind is ToolKind.CUSTOM:
            return sequence(opening, literal(INPUT), equals, self._custom(tool), closing)
        if not tool.strict or not tool.parameters:
            names = either([_NAME, *map(self._name, argument_types(tool).names)])
            return sequence(opening, self._items(sequence(names, equals, self.any())), closing)
        schema = json.loads(tool.parameters)
        return sequence(opening, self._properties(schema, tool, equals, keys_quoted=False), closing)

    def any(self) -> str:
        """Return a rule of any value."""
        shared, key = self._lark.shared, (self._python, self._constants)
        if key in shared:
            return shared[key]
        shared[key] = rule = self._lark.reserve()
        options = [
            self._string(),
            _NUMBER,
            *map(literal, self._constants),
            sequence(literal("["), self._items(rule), literal("]")),
            sequence(literal("{"), self._items(sequence(self._key(), rule)), literal("}")),
        ]
        self._lark.define(rule, either(options))
        return rule

    def _items(self, item: str) -> str:
        return optional(sequence(item, f"( {sequence(self._comma, item)} )*"))

    def _key(self) -> str:
        """Return a key of a nested object, with its separator."""
        if self._python:
            return sequence(self._string(), literal(": "))
        return sequence(either([_NAME, self._string()]), literal(self._arguments.key_separator))

    def _name(self, name: str) -> str:
        """Return a name, quoted if a reader would not find its end."""
        if _BARE.fullmatch(name):
            return literal(name)
        return literal(json.dumps(name, ensure_ascii=False)) if self._python else self._constant(name)

    def _string(self) -> str:
        if self._python:
            return self._lark.rule(f"/{_DOUBLE}|{_SINGLE}/", terminal=True)
        return sequence(self._lark.text(self._arguments.quote), self._lark.until(self._arguments.quote))

    def _custom(self, tool: Tool) -> str:
        grammar = custom_grammar(tool, escaped=self._python)
        if grammar is None:
            return self._string()
        quote = literal('"') if self._python else self._lark.text(self._arguments.quote)
        return sequence(quote, self._lark.rule(grammar), quote)

    def _properties(self, schema: Any, tool: Tool, separator: str, *, keys_quoted: bool) -> str:
        """Return the properties of an object in the schema's order."""
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(properties, dict) or not properties:
            return ""
        required = schema.get("required", ())
        items = []
        for name, each in properties.items():
            key = literal(json.dumps(name, ensure_ascii=False)) if keys_quoted else self._name(name)
            items.append((sequence(key, separator, self._typed(each, tool)), name in required))
        return in_order(self._lark, items, self._comma)

    def _typed(self, schema: Any, tool: Tool) -> str:
        """Return a value by its schema."""
        if not isinstance(schema, dict) or not schema:
            return self.any()
        unknown = sorted(set(schema) - _CHECKED)
        kind = schema.get("type")
        if unknown or isinstance(kind, list) or isinstance(schema.get("additionalProperties"), dict):
            reason = unknown[0] if unknown else "type" if isinstance(kind, list) else "additionalProperties"
            raise RequestError(
                f"{shown(reason)} in the schema of the strict tool {shown(tool.name)} cannot be enforced in this "
                "model's format of calls (leave it out, or leave out strict)",
                param="tools",
            )
        if "const" in schema or "enum" in schema:
            return either(self._constant(each) for each in schema.get("enum", [schema.get("const")]))
        words = ("True", "False") if self._python else ("true", "false")
        simple = {
            "string": self._string(),
            "integer": _INTEGER,
            "number": _NUMBER,
            "boolean": either(map(literal, words)),
            "null": literal("None" if self._python else "null"),
        }
        if kind in simple:
            return simple[kind]
        if kind == "array":
            item = self._typed(schema.get("items", {}), tool)
            return sequence(literal("["), self._items(self._lark.rule(item)), literal("]"))
        if kind == "object" and schema.get("properties"):
            separator = literal(": " if self._python else self._arguments.key_separator)
            inside = self._properties(schema, tool, separator, keys_quoted=self._python)
            return sequence(literal("{"), inside, literal("}"))
        if kind == "object":
            return sequence(literal("{"), self._items(sequence(self._key(), self.any())), literal("}"))
        return self.any()

    def _constant(self, value: Any) -> str:
        """Return a value as it is written."""
        if isinstance(value, str) and not self._python:
            return self._lark.text(f"{self._arguments.quote}{value}{self._arguments.quote}")
        if self._python and (value is None or isinstance(value, bool)):
            return literal(repr(value))
        return literal(json.dumps(value, ensure_ascii=False))
