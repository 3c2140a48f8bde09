"""Write messages in an `OutputFormat`, as chat templates do. The inverse of the parser."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ferrum.core.output_format import Arguments, ArgumentStyle, Calls, CallStyle, OutputFormat, ValueStyle

Spelling = Callable[[Any], str]
"""Returns the text of a value that is not a bare string."""

NamedArguments = tuple[str, Mapping[str, Any]]
"""The name and arguments of a call."""


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


def write_calls(calls: Calls, written: Sequence[NamedArguments], spell: Spelling | None = None) -> str:
    """Return the calls of a message.

    Args:
        calls: the format.
        written: the calls.
        spell: of values that are not bare strings; JSON with the format's separators if it is absent.
    """
    spell = spell or json_spelling(calls.arguments)
    texts = [calls.open + _call(calls, name, arguments, spell) + calls.close for name, arguments in written]
    return calls.section_open + calls.between.join(texts) + calls.section_close


def _call(calls: Calls, name: str, arguments: Mapping[str, Any], spell: Spelling) -> str:
    if calls.style is CallStyle.OBJECT:
        return spell({calls.name_key: name, calls.arguments_key: arguments})
    if calls.style is CallStyle.PYTHONIC:
        return f"{name}({', '.join(f'{key}={python_literal(value)}' for key, value in arguments.items())})"
    return name + calls.after_name + _arguments(calls.arguments, arguments, spell)


def _arguments(format: Arguments, arguments: Mapping[str, Any], spell: Spelling) -> str:
    if format.style is ArgumentStyle.JSON:
        return spell(arguments)
    if format.style is ArgumentStyle.GEMMA:
        return _gemma(arguments)
    return format.between.join(
        format.key_open
        + key
        + format.key_close
        + format.value_open
        + (value if isinstance(value, str) and format.values is ValueStyle.RAW else spell(value))
        + format.value_close
        for key, value in arguments.items()
    )


def python_literal(value: Any) -> str:
    """Return a JSON value as a literal of Python."""
    return repr(value)


def _gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_gemma(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return json.dumps(value)
