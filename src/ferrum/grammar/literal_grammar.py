"""Grammars of arguments as literals: Python's keyword arguments, and Gemma's objects."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from ferrum.core.output_format import Arguments, Tool, ToolKind
from ferrum.formats.argument_types import argument_types
from ferrum.formats.json_text import INPUT
from ferrum.grammar.custom_grammar import custom_grammar
from ferrum.grammar.lark import Lark, either, literal, optional, sequence

_DOUBLE: Final = r'"([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"'
_SINGLE: Final = r"'([^'\\\x00-\x1f]|\\(['\\\/bfnrt]|u[0-9a-fA-F]{4}))*'"
NUMBER: Final = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/"
INTEGER: Final = r"/-?(0|[1-9][0-9]*)/"
NAME: Final = r"""/[^\s:=,;(){}\[\]"'<>|]([^:=,(){}\[\]<>|\r\n]*[^\s:=,(){}\[\]<>|])?/"""
"""What a reader takes for a name without quotes."""
_BARE: Final = re.compile(NAME[1:-1])
JSON_CONSTANTS: Final = ("true", "false", "null")
PYTHON_CONSTANTS: Final = ("True", "False", "None")


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
        """Return an expression of a tool's arguments with their brackets, if the tool is not strict."""
        opening, closing = (literal("("), literal(")")) if self._python else (literal("{"), literal("}"))
        equals = literal("=" if self._python else self._arguments.key_separator)
        if tool.kind is ToolKind.CUSTOM:
            return sequence(opening, literal(INPUT), equals, self._custom(tool), closing)
        names = either([NAME, *map(self.name, argument_types(tool).names)])
        return sequence(opening, self.items(sequence(names, equals, self.any())), closing)

    def any(self) -> str:
        """Return a rule of any value."""
        shared, key = self._lark.shared, (self._python, self._constants)
        if key in shared:
            return shared[key]
        shared[key] = rule = self._lark.reserve()
        options = [
            self.string(),
            NUMBER,
            *map(literal, self._constants),
            sequence(literal("["), self.items(rule), literal("]")),
            sequence(literal("{"), self.items(sequence(self.key(), rule)), literal("}")),
        ]
        self._lark.define(rule, either(options))
        return rule

    def items(self, item: str) -> str:
        """Return any number of items with commas between them."""
        return optional(sequence(item, f"( {sequence(self._comma, item)} )*"))

    def key(self) -> str:
        """Return a key of a nested object, with its separator."""
        if self._python:
            return sequence(self.string(), literal(": "))
        return sequence(either([NAME, self.string()]), literal(self._arguments.key_separator))

    def name(self, name: str) -> str:
        """Return a name, quoted if a reader would not find its end."""
        if _BARE.fullmatch(name):
            return literal(name)
        return literal(json.dumps(name, ensure_ascii=False)) if self._python else self.constant(name)

    def string(self) -> str:
        """Return any string with its quotes."""
        if self._python:
            return self._lark.rule(f"/{_DOUBLE}|{_SINGLE}/", terminal=True)
        return sequence(self._lark.text(self._arguments.quote), self._lark.until(self._arguments.quote))

    def _custom(self, tool: Tool) -> str:
        grammar = custom_grammar(tool, escaped=self._python)
        if grammar is None:
            return self.string()
        if not self._python:
            quote = self._arguments.quote
            is_regex = tool.syntax == "regex"
            text = (
                self._lark.closed(grammar, quote)
                if is_regex
                else f"{self._lark.rule(grammar)} {self._lark.text(quote)}"
            )
            return sequence(self._lark.text(quote), text)
        options = [f"{literal(chr(34))} {self._lark.rule(grammar)} {literal(chr(34))}"]
        if tool.syntax == "regex":
            single = custom_grammar(tool, escaped=True, quote="'")
            options.append(f"{literal(chr(39))} {single} {literal(chr(39))}")
        return either(options)

    def constant(self, value: Any) -> str:
        """Return a value as it is written."""
        if isinstance(value, str) and not self._python:
            return self._lark.text(f"{self._arguments.quote}{value}{self._arguments.quote}")
        if self._python and (value is None or isinstance(value, bool)):
            return literal(repr(value))
        return literal(json.dumps(value, ensure_ascii=False))
