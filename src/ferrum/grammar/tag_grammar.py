"""Grammars of arguments in tags: what opens and closes them, texts between them, and values by a strict schema.

A closing tag that is text, not a token of the vocabulary, may stand in a value. It ends the value if a further argument
or the end of the call follows, as in `argument_readers`. Strings stand there without quotes. Where a value may also be
something else, a reader takes a text for that if it can, so strings that it would read so are left out.
"""

from __future__ import annotations

import json
from typing import Final

from ferrum.core.output_format import Arguments, Calls, Tool, ValueStyle
from ferrum.formats.argument_types import STRING, Types, argument_types
from ferrum.formats.patterns import SPACE
from ferrum.grammar.lark import Lark, either, in_order, json_of, list_of, literal, optional, regex, sequence
from ferrum.grammar.schema_forms import TYPES, Form, Forms, Schema, string_terminal
from ferrum.grammar.schema_places import pointed

_SPACES: Final = "[ \\t\\r\\n]{0,16}"
_SOME_SPACES: Final = "/[ \\t\\r\\n]{1,16}/"


class Tags:
    """The tags of a format in one grammar.

    Args:
        calls: of the format; its arguments are tagged.
    """

    def __init__(self, lark: Lark, calls: Calls) -> None:
        self._lark = lark
        self._calls = calls
        self._arguments = calls.arguments
        self._is_text = lark.is_text(self._arguments.value_close)

    def key_open(self, *, first: bool) -> str:
        """Return what opens the first argument, or a further one after what stands between two."""
        arguments = self._arguments
        return self._after_space(arguments.key_open if first else arguments.between + arguments.key_open)

    def key(self, name: str, mark: str = "") -> str:
        """Return a key up to its value."""
        arguments = self._arguments
        return self._lark.text(f"{name}{arguments.key_close}{mark}{arguments.value_open}")

    def other_key(self, names: tuple[str, ...], mark: str = "") -> str:
        """Return any key but some up to its value."""
        body = '/[^<>"\\s]([^<>"\\n]*[^<>"\\s])?/'
        if names:
            body += f" & ~/{'|'.join(map(regex, names))}/"
        return sequence(self._lark.rule(body, terminal=True), self.key("", mark))

    def text(self) -> str:
        """Return any text up to a closing tag, which is part of it."""
        close = self._arguments.value_close.strip(SPACE)
        if not self._is_text:
            return self._lark.until(self._arguments.value_close.lstrip(SPACE))
        value = f"/(?s:.*){regex(close)}/"
        more = self._lark.lazy(f"{value} & ~/(?s:{_SPACES}({'|'.join(self._following())}).*)/")
        raw_open, raw_close = self._arguments.raw_open, self._arguments.raw_close
        if not raw_open:
            return sequence(self._lark.lazy(value), f"{more}*")
        plain = self._lark.lazy(f"{value} & ~/(?s:{regex(raw_open)}.*)/")
        raw = self._lark.lazy(f"/(?s:{regex(raw_open)}.*){regex(raw_close)}{_SPACES}{regex(close)}/")
        return f"( {plain} {more}* | {raw} )"

    def closed(self, body: str, *, is_string: bool = True) -> str:
        """Return a text of a terminal up to the closing tag, which is part of it. Other text may not hold the tag."""
        close, raw_open = self._arguments.value_close, self._arguments.raw_open
        if not raw_open or not is_string:
            return self._lark.closed(body, close)
        raw = self._lark.closed(body, self._arguments.raw_close + close)
        plain = self._lark.closed(f"( {body} ) & ~/{regex(raw_open)}(?s:.*)/", close)
        return f"( {plain} | {sequence(literal(raw_open), raw)} )"

    def call_close(self) -> str:
        """Return the end of a call."""
        return self._after_space(self._calls.close)

    @property
    def empty(self) -> str:
        """What stands in place of arguments; empty if it is white space that may stand there anyway."""
        empty = self._arguments.empty
        return "" if self._is_text and not empty.strip(SPACE) else self._lark.text(empty)

    def _after_space(self, text: str) -> str:
        """Return a text after any white space; its first line is one terminal, since a value may begin to go on so."""
        if not self._is_text:
            return self._lark.text(text)
        head, rest = self._lark.cut(text.lstrip(SPACE))
        line, newline, after = head.partition("\n")
        begin = f"/{_SPACES}{regex(line)}/" if line else optional(_SOME_SPACES)
        return sequence(begin, self._lark.text(newline + after + rest))

    def _following(self) -> list[str]:
        """Return regular expressions of what shows that a closing tag is one."""
        arguments, calls = self._arguments, self._calls
        texts = [arguments.between + arguments.key_open, *calls.close.split(), *calls.section_close.split()]
        heads = [self._lark.cut(each)[0] for each in texts]
        return list(dict.fromkeys(_SPACES.join(map(regex, head.split())) for head in heads if head.strip(SPACE)))


# Arguments of strict tools, in the order of the schema

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
