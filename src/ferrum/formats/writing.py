"""Write messages in an `OutputFormat`, as chat templates do. The inverse of the parser."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ferrum.core.output_format import Arguments, ArgumentStyle, Calls, CallStyle, IdPlace, OutputFormat, ValueStyle

Spelling = Callable[[Any], str]
"""Returns the text of a value that is not a bare string."""

NamedArguments = tuple[str, Mapping[str, Any]]
"""The name and arguments of a call."""


def spelling(calls: Calls) -> Spelling:
    """Return the spelling of a format: literals of Python for calls in Python, JSON with its separators for others."""
    return repr if calls.style is CallStyle.PYTHONIC else json_spelling(calls.arguments)


def json_spelling(arguments: Arguments, *, ascii_only: bool = False) -> Spelling:
    """Return the spelling of JSON with the separators of a format."""
    separators = (arguments.item_separator, arguments.key_separator)
    return lambda value: json.dumps(value, ensure_ascii=ascii_only, separators=separators)


def write_output(
    format: OutputFormat,
    reasoning: str | None = None,
    content: str | None = None,
    calls: Sequence[NamedArguments] = (),
) -> str:
    """Return a whole output. Parts that the format lacks must be absent."""
    text = ""
    if reasoning is not None and format.reasoning is not None:
        text += format.reasoning.open + reasoning + format.reasoning.close
    if content is not None:
        text += format.content_open + content + format.content_close
    if calls and format.calls is not None:
        text += write_calls(format.calls, calls)
    return text


def write_calls(
    calls: Calls,
    written: Sequence[NamedArguments],
    spell: Spelling | None = None,
    ids: Sequence[str] = (),
) -> str:
    """Return the calls of a message.

    Args:
        calls: the format.
        written: the calls.
        spell: of values that are not bare strings; that of the format if it is absent.
        ids: of the calls; their numbers if they are absent.
    """
    spell = spell or spelling(calls)
    names = ids or [str(place) for place in range(len(written))]
    texts = [
        calls.open + _call(calls, name, arguments, spell, id_) + calls.close
        for (name, arguments), id_ in zip(written, names, strict=True)
    ]
    return calls.section_open + calls.between.join(texts) + calls.section_close


def _call(calls: Calls, name: str, arguments: Mapping[str, Any], spell: Spelling, id_: str) -> str:
    if calls.style is CallStyle.OBJECT:
        first, extra = ({key: _extra(key, id_) for key in keys} for keys in (calls.first_keys, calls.extra_keys))
        return spell({**first, calls.name_key: name, calls.arguments_key: arguments, **extra})
    if calls.style is CallStyle.PYTHONIC:
        return f"{name}({', '.join(f'{key}={spell(value)}' for key, value in arguments.items())})"
    if calls.id_place is IdPlace.BEFORE:
        name = id_ + calls.id_separator + name
    elif calls.id_place is IdPlace.AFTER:
        name += calls.id_separator + id_
    return name + calls.after_name + _arguments(calls.arguments, arguments, spell)


def _extra(key: str, id_: str) -> str:
    return "function" if key == "type" else id_


def _arguments(form: Arguments, values: Mapping[str, Any], spell: Spelling) -> str:
    if form.style is ArgumentStyle.JSON:
        return spell(values)
    if form.style is ArgumentStyle.GEMMA:
        return _gemma(form, values)
    return form.between.join(_tagged(form, *each, spell) for each in values.items()) or form.empty


def _tagged(form: Arguments, key: str, value: Any, spell: Spelling) -> str:
    text, mark = spell(value), form.other_mark
    if isinstance(value, str):
        mark = form.string_mark
        text = value if form.values is ValueStyle.RAW else text
        if form.raw_open and any(letter in value for letter in "<&\n"):
            text = form.raw_open + value + form.raw_close
    return form.key_open + key + form.key_close + mark + form.value_open + text + form.value_close


def _gemma(form: Arguments, value: Any) -> str:
    if isinstance(value, str):
        return form.quote + value + form.quote
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_gemma(form, entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_gemma(form, entry) for entry in value) + "]"
    return json.dumps(value)
