"""Grammars of arguments as Python's keyword arguments and Gemma's objects, of any value and by a strict schema."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.core.output_format import Arguments, Tool, ToolKind
from ferrum.formats.argument_types import argument_types, type_of
from ferrum.formats.json_text import INPUT
from ferrum.grammar.custom_grammar import custom_grammar, escaped_regex
from ferrum.grammar.lark import Lark, either, in_order, json_of, list_of, literal, optional, regex, sequence
from ferrum.grammar.schema_forms import ANY, Form, Forms, Schema, string_terminal
from ferrum.grammar.schema_places import pointed

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


# Arguments of strict tools

_MOST_ITEMS: Final = 10_000
_MOST_RULES: Final = 500
_NUMBERS: Final = frozenset({"integer", "number"})
_CODE: Final = re.compile(r"\\x\{([0-9A-Fa-f]+)\}")


class StrictLiterals:
    """The arguments of one strict tool.

    Args:
        arguments: how the format writes them.
        tool: with a checked schema.
        python: see `Literals`.
    """

    def __init__(self, lark: Lark, arguments: Arguments, tool: Tool, *, python: bool) -> None:
        constants = (*JSON_CONSTANTS, *PYTHON_CONSTANTS) if python else JSON_CONSTANTS
        self._lark = lark
        self._arguments = arguments
        self._tool = tool
        self._python = python
        self._literals = Literals(lark, arguments, python=python, constants=constants)
        self._forms = Forms(tool)
        self._comma = literal(", " if python else arguments.item_separator)
        self._known: dict[str, str] = {}

    def arguments(self) -> str:
        """Return the arguments with their brackets.

        Raises:
            InvalidSchema: the schema cannot be enforced; the message has the JSON pointer.
        """
        forms = [form for form in self._forms.of(self._forms.root, "#") if "object" in form.types]
        if not forms:
            self._forms.refuse("#/type", "a schema of no object")
        equals = literal("=" if self._python else self._arguments.key_separator)
        opening, closing = (literal("("), literal(")")) if self._python else (literal("{"), literal("}"))
        inside = [self._properties(form, "#", equals, outside=True) for form in forms]
        return either(sequence(opening, each, closing) for each in inside)

    def _value(self, schema: Schema, pointer: str) -> str:
        """Return a rule of the values of a schema, which may refer to itself."""
        key = json.dumps(schema, sort_keys=True)
        if key not in self._known:
            if len(self._known) == _MOST_RULES:
                self._forms.refuse(pointer, f"a schema of more than {_MOST_RULES} kinds of values")
            self._known[key] = rule = self._lark.reserve()
            forms = self._forms.of(schema, pointer)
            options = [option for form in forms for option in self._options(form, pointer)]
            numbers = frozenset[str]().union(*(form.types for form in forms)) & _NUMBERS
            if ANY not in forms and numbers:
                bare = any(numbers <= form.types and not form.limits("integer") for form in forms)
                nested = json_of(self._forms.nested(schema, numbers), self._arguments)
                options.append((NUMBER if "number" in numbers else INTEGER) if bare else nested)
            self._lark.define(rule, either(options))
        return self._known[key]

    def _options(self, form: Form, pointer: str) -> list[str]:
        """Return the values of a form by type, without numbers."""
        if form == ANY:
            return [self._literals.any()]
        words = ("True", "False", "None") if self._python else ("true", "false", "null")
        found = []
        if "string" in form.types:
            found.append(self._string(form, pointer))
        if form.values is not None:
            plain = [each for each in form.values if type_of(each) in form.types - _NUMBERS - {"string"}]
            if any(isinstance(each, list | dict) and _narrowed(form, each) for each in plain):
                self._forms.refuse(pointer, "constants next to other keywords of their parts")
            return [*found, *map(self._literals.constant, plain)]
        if "boolean" in form.types:
            found += map(literal, words[:2])
        if "null" in form.types:
            found.append(literal(words[2]))
        if "array" in form.types:
            found.append(sequence(literal("["), self._items(form, pointer), literal("]")))
        if "object" in form.types:
            separator = literal(": " if self._python else self._arguments.key_separator)
            inside = self._properties(form, pointer, separator, outside=False)
            found.append(sequence(literal("{"), inside, literal("}")))
        return found

    def _string(self, form: Form, pointer: str) -> str:
        terminal = string_terminal(form)
        if not terminal:
            return self._literals.string()
        if not self._python:
            quote = self._arguments.quote
            return sequence(self._lark.text(quote), self._lark.closed(terminal, quote))
        parts = [] if form.values is None else ["|".join(regex(each) for each in form.values if isinstance(each, str))]
        if form.least or form.most is not None:
            parts.append(f"(?s:.{{{form.least},{'' if form.most is None else form.most}}})")
        parts += (each.removeprefix("^").removesuffix("$") for each in form.patterns)
        options = []
        for quote in ('"', "'"):
            try:
                escaped = [f"/{escaped_regex(_as_python(each), self._tool.name, quote)}/" for each in parts]
            except RequestError:
                self._forms.refuse(f"{pointer}/pattern", "a pattern with properties of characters")
            inside = f"{literal(quote)} ( {' & '.join(escaped)} ) {literal(quote)}"
            options.append(self._lark.rule(inside, terminal=True))
        return either(options)

    def _items(self, form: Form, pointer: str) -> str:
        """Return the items of an array."""
        first = [self._value(each, f"{pointer}/prefixItems/{number}") for number, each in enumerate(form.first)]
        if form.items is False and form.few > len(first):
            self._forms.refuse(f"{pointer}/minItems", f"at least {form.few} items of {len(first)}")
        if max(form.few, form.many or 0) > _MOST_ITEMS:
            self._forms.refuse(pointer, f"a number of items above {_MOST_ITEMS}")
        item = "" if form.items is False else self._value(form.items, f"{pointer}/items")
        many = form.many
        found = ""
        if item and (many is None or many > len(first)):
            low, high = max(0, form.few - len(first)), None if many is None else many - len(first)
            if first:
                found = _repeated(sequence(self._comma, item), low, high)
            else:
                more = _repeated(sequence(self._comma, item), max(0, low - 1), None if high is None else high - 1)
                found = sequence(item, more) if low else optional(sequence(item, more))
        for number in reversed(range(len(first) if many is None else min(many, len(first)))):
            found = sequence(self._comma if number else "", first[number], found)
            found = found if number < form.few else optional(found)
        return found

    def _properties(self, form: Form, pointer: str, separator: str, *, outside: bool) -> str:
        """Return the properties of an object in the schema's order; `outside`: they are the arguments."""
        named = list(form.named())
        self._forms.check_counts(form, named, pointer)
        items = []
        for name, schema, required in named:
            key = self._literals.name(name)
            if self._python and not outside:
                key = either([literal(json.dumps(name, ensure_ascii=False)), literal(repr(name))])
            value = self._value(schema, f"{pointer}/properties/{pointed(name)}")
            items.append((sequence(key, separator, value), required))
        if form.others is not False and (outside or not items):
            # Further properties of objects within are left out: a reader would take the last of two with one name.
            key = sequence(self._other_name(form), separator) if outside else self._literals.key()
            value = self._value(form.others, f"{pointer}/additionalProperties")
            items.append((list_of(sequence(key, value), self._comma), False))
        return in_order(self._lark, items, self._comma)

    def _other_name(self, form: Form) -> str:
        """Return any name of an argument but those of the schema."""
        known = "|".join(map(regex, form.properties or ()))
        return self._lark.rule(f"{NAME} & ~/{known}/", terminal=True) if known else NAME


def _repeated(item: str, low: int, high: int | None) -> str:
    return "" if high == 0 else f"( {item} ){{{low},{'' if high is None else high}}}"


def _narrowed(form: Form, value: Any) -> bool:
    """Return whether keywords next to a constant say something about its parts."""
    return replace(form, values=None).limits("array" if isinstance(value, list) else "object")


def _as_python(pattern: str) -> str:
    """Return a pattern with code points in Python's spelling."""
    return _CODE.sub(lambda found: f"\\U{int(found[1], 16):08x}", pattern)
