"""Grammars of a strict tool's arguments in tags, in the order of the schema.

Strings stand there without quotes. Where a value may also be something else, a reader takes a text for that if it can,
so strings that it would read so are left out.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ferrum.core.output_format import Arguments, Tool, ValueStyle
from ferrum.formats.argument_types import STRING, Types, argument_types
from ferrum.grammar.constraint_grammars import regex_literal
from ferrum.grammar.lark import Lark, either, in_order, json_of, list_of, literal, regex, sequence
from ferrum.grammar.schema_forms import TYPES, Form, Forms, Schema
from ferrum.grammar.tag_grammar import Tags

_ANY_TEXT: Final = "/(?s:.*)/"
_NUMBER: Final = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_SCALARS: Final = {
    "null": "null",
    "boolean": "true|false|True|False",
    "integer": "-?(0|[1-9][0-9]{0,15})",
    "number": _NUMBER,
}
_READ: Final = {
    "null": "null|None",
    "boolean": "true|false|True|False",
    "integer": _NUMBER,
    "number": _NUMBER,
    "array": r"[\[(](?s:.*)",
    "object": r"\{(?s:.*)",
}
"""What a reader takes for a value of a type."""


def string_terminal(form: Form) -> str:
    """Return a terminal of the strings of a form; empty if any is."""
    parts = []
    if form.values is not None:
        parts.append(f"/{'|'.join(regex(each) for each in form.values if isinstance(each, str))}/")
    if form.least or form.most is not None:
        parts.append(f"/(?s:.{{{form.least},{'' if form.most is None else form.most}}})/")
    # A checked pattern has anchors at both ends and none within.
    parts += (regex_literal(each.removeprefix("^").removesuffix("$")) for each in form.patterns)
    return " & ".join(parts)


class StrictTags:
    """The arguments of one strict tool.

    Args:
        arguments: how the format writes them.
        tags: of the format.
        tool: with a checked schema.
    """

    def __init__(self, lark: Lark, arguments: Arguments, tags: Tags, tool: Tool) -> None:
        self._lark = lark
        self._arguments = arguments
        self._tags = tags
        self._types = argument_types(tool)
        self._forms = Forms(tool)

    def arguments(self) -> str:
        """Return the arguments of a call.

        Raises:
            InvalidSchema: the schema cannot be enforced; the message has the JSON pointer.
        """
        forms = [form for form in self._forms.of(self._forms.root, "#") if "object" in form.types]
        if not forms:
            self._forms.refuse("#/type", "a schema of no object")
        return either(map(self._object, forms))

    def _object(self, form: Form) -> str:
        tags, named = self._tags, list(form.named())
        self._forms.check_counts(form, named, "#")
        opening, further = tags.key_open(first=True), tags.key_open(first=False)
        items = [(self._argument(name, schema), required) for name, schema, required in named]
        if form.others is not False:
            other = self._lark.rule(self._argument(None, form.others))
            items.append((list_of(other, further), False))
        whole = in_order(self._lark, items, further, opening) if items else tags.empty
        return whole if form.required or not tags.empty else either([whole, tags.empty])

    def _argument(self, name: str | None, schema: Schema) -> str:
        """Return an argument from its key to its closing tag; `name` None: any."""
        arguments, tags = self._arguments, self._tags
        pointer = "#/additionalProperties" if name is None else f"#/properties/{pointed(name)}"

        def head(mark: str) -> str:
            return tags.other_key(self._types.names, mark) if name is None else tags.key(name, mark)

        forms = self._forms.of(schema, pointer)
        others = frozenset[str]().union(*(form.types for form in forms)) - STRING
        close = self._lark.text(arguments.value_close)
        other = sequence(head(arguments.other_mark), self._other(forms, schema, others), close) if others else ""
        texts = [string_terminal(form) for form in forms if "string" in form.types]
        if arguments.values is ValueStyle.JSON:
            return sequence(head(""), json_of(self._forms.nested(schema), arguments), close)
        if not texts:
            return other
        read = self._types.others if name is None else self._types.get(name)
        if not arguments.string_mark and read != STRING:
            return sequence(head(""), self._mixed(forms, texts, others, read, pointer))
        text = sequence(head(arguments.string_mark), self._text(texts))
        return either([text, other]) if other else text

    def _text(self, texts: list[str]) -> str:
        """Return a string up to its closing tag."""
        return self._tags.text() if "" in texts else either(map(self._tags.closed, texts))

    def _mixed(self, forms: list[Form], texts: list[str], others: frozenset[str], read: Types, pointer: str) -> str:
        """Return a value that a reader may take for a string or something else."""
        free = {kind for form in forms for kind in form.types if not form.limits(kind)}
        if "" in texts and (TYPES if read is None else read) <= free | {"string"} | _implied(free):
            return self._tags.text()
        readable = [_READ[each] for each in sorted(_READ if read is None else read - STRING)]
        unread = f"~/\\s*({'|'.join([*dict.fromkeys(readable), chr(34) + '(?s:.*)'])})\\s*/"
        options = [self._tags.closed(f"( {each or _ANY_TEXT} ) & {unread}") for each in texts]
        for kind in sorted(others):
            limited = [form for form in forms if kind in form.types and form.limits(kind)]
            values = [each for form in limited for each in form.values or () if not isinstance(each, str | list | dict)]
            if kind in free and kind in _SCALARS:
                options.append(self._tags.closed(f"/{_SCALARS[kind]}/", is_string=False))
            elif values:
                body = "|".join(regex(json.dumps(each)) for each in values)
                options.append(self._tags.closed(f"/{body}/", is_string=False))
            else:
                self._forms.refuse(pointer, f"a choice between a string and {kind!r} with a schema of its parts")
        return either(options)

    def _other(self, forms: list[Form], schema: Schema, types: frozenset[str]) -> str:
        """Return a value that is no string. Templates render booleans as Python writes them, too."""
        is_mixed = any("string" in form.types for form in forms)
        nested = self._forms.nested(schema, types if is_mixed else TYPES)
        options = [json_of(nested, self._arguments)]
        if any("boolean" in form.types and not form.limits("boolean") for form in forms) and not is_mixed:
            options += [literal("True"), literal("False")]
        return either(options)


def _implied(free: set[str]) -> set[str]:
    """Return the types whose values have a free type, too."""
    return {"integer"} if "number" in free else set()


def pointed(step: Any) -> str:
    """Return a step of a JSON pointer (RFC 6901)."""
    return str(step).replace("~", "~0").replace("/", "~1")
