"""`OutputFormat`: how a model writes reasoning, tool calls and content, as data. Parsers and grammars derive from it.

Formats are found, and outputs read, in `formats`; their grammars are in `grammar`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ferrum.core.json_record import JsonRecord


class CallStyle(StrEnum):
    """Where a call has its name and its arguments.

    OBJECT: in one JSON object under the keys `name_key` and `arguments_key`, between `open` and `close`.
    NAMED: `open` name `after_name` arguments `close`.
    PYTHONIC: name(key=value, ...) with literals of Python.
    """

    OBJECT = "object"
    NAMED = "named"
    PYTHONIC = "pythonic"


class ArgumentStyle(StrEnum):
    """How arguments are written.

    JSON: one object.
    TAGGED: each as `key_open` key `key_close` `value_open` value `value_close`.
    GEMMA: {key:value,...} with strings between `<|"|>`.
    """

    JSON = "json"
    TAGGED = "tagged"
    GEMMA = "gemma"


class IdPlace(StrEnum):
    """Where a call of `CallStyle.NAMED` has its id: nowhere, between `open` and the name, or right after the name."""

    NONE = "none"
    BEFORE = "before"
    AFTER = "after"


class ValueStyle(StrEnum):
    """How the value of a tagged argument is written: strings as they are and the rest as JSON, or all as JSON."""

    RAW = "raw"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning(JsonRecord):
    """The markers around reasoning, with the white space that the template writes next to them."""

    open: str
    close: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(JsonRecord):
    """How the arguments of a call are written.

    Attributes:
        style: see `ArgumentStyle`.
        item_separator, key_separator: between the items of JSON, and after its keys.
        key_open, key_close, value_open, value_close: around each tagged argument.
        between: between two tagged arguments.
        values: see `ValueStyle`.
        string_mark, other_mark: stand between `key_close` and `value_open` and say whether the value is a string; empty
            if nothing says so.
        quote: around strings, for `ArgumentStyle.GEMMA`.
        raw_open, raw_close: may surround the string of a tagged argument, as XML's CDATA.
        empty: in place of tagged arguments if there are none.
    """

    style: ArgumentStyle = ArgumentStyle.JSON
    item_separator: str = ", "
    key_separator: str = ": "
    key_open: str = ""
    key_close: str = ""
    value_open: str = ""
    value_close: str = ""
    between: str = ""
    values: ValueStyle = ValueStyle.RAW
    string_mark: str = ""
    other_mark: str = ""
    quote: str = '<|"|>'
    raw_open: str = ""
    raw_close: str = ""
    empty: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls(JsonRecord):
    """How tool calls are written: section_open open ... close between open ... close section_close.

    All texts have the white space that the template writes. The parser accepts other white space next to markers.

    Attributes:
        section_open, section_close: around all calls of a message; empty if there are none.
        open, close: around one call.
        between: between two calls.
        style: see `CallStyle`.
        name_key, arguments_key: of the object, for `CallStyle.OBJECT`.
        first_keys, extra_keys: further keys of the object before the name and after the arguments. The value of `type`
            is `function`; the others are ids.
        after_name: between name and arguments, for `CallStyle.NAMED`.
        after_name_aliases: other texts that models write there.
        id_place: see `IdPlace`.
        id_separator: between the id and the name.
        arguments: of each call.
        parallel: the template writes several calls in one message.
        aliases: other texts that models write in place of `section_open` or, without a section, of `open`.
    """

    section_open: str = ""
    section_close: str = ""
    open: str = ""
    close: str = ""
    between: str = ""
    style: CallStyle = CallStyle.OBJECT
    name_key: str = "name"
    arguments_key: str = "arguments"
    first_keys: tuple[str, ...] = ()
    extra_keys: tuple[str, ...] = ()
    after_name: str = ""
    after_name_aliases: tuple[str, ...] = ()
    id_place: IdPlace = IdPlace.NONE
    id_separator: str = ""
    arguments: Arguments = Arguments()
    parallel: bool = True
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(JsonRecord):
    """The header of a message in formats with channels: recipient `open` channel words `close`.

    Words are a type of content or an unknown recipient; channels that no text of the format names have content.

    Attributes:
        open, close: around the header.
        marks: texts that may stand among the words.
        recipient: begins a recipient, before `open` or among the words; empty: there are none.
    """

    open: str
    close: str
    marks: tuple[str, ...] = ()
    recipient: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat(JsonRecord):
    """What a model's output consists of, in this order: reasoning, content, calls. Each may be absent.

    Attributes:
        name: of the format: that of a hand-written one, or `template` for one read off a chat template.
        source: where it was found: `response_template`, `template`, `known`, `file`.
        reasoning: None if the model writes none.
        calls: None if the model writes none.
        content_open, content_close: around content, for formats with channels; empty for the others.
        content_aliases: other texts that begin content.
        prefix: the end of the generation prompt that belongs to the output's first marker.
        ignored: texts that carry nothing, such as headers of messages between channels.
        header: of messages, if models write more in one than the texts of the format have.
    """

    name: str
    source: str
    reasoning: Reasoning | None = None
    calls: Calls | None = None
    content_open: str = ""
    content_close: str = ""
    content_aliases: tuple[str, ...] = ()
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    header: Header | None = None


class ToolKind(StrEnum):
    """What a tool takes: arguments by a JSON Schema, or a text in another form (OpenAI's custom tools)."""

    FUNCTION = "function"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool(JsonRecord):
    """A tool that the model may call.

    Attributes:
        name: unique among the tools of a request.
        parameters: JSON Schema of the arguments as JSON text; empty: any object.
        strict: the arguments must satisfy the schema; otherwise only JSON is enforced.
        kind: see `ToolKind`.
        syntax, definition: the grammar of a custom tool's text (`lark` or `regex`); empty: any text.
    """

    name: str
    parameters: str = ""
    strict: bool = False
    kind: ToolKind = ToolKind.FUNCTION
    syntax: str = ""
    definition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(JsonRecord):
    """How the output of one request is read.

    Attributes:
        format: of the model.
        tools: of the request; without any, nothing is read as a call.
        opened: the prompt ends within reasoning.
        reasoning: reasoning is separated from content.
    """

    format: OutputFormat
    tools: tuple[Tool, ...] = ()
    opened: bool = False
    reasoning: bool = True
