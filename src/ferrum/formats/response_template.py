"""Translate the `response_template` of a tokenizer (transformers 5.5 and later, version 1) to an `OutputFormat`.

Such a template names a region of the output by field: its opening and closing texts or patterns, and a parser of its
content. Patterns are translated if they are texts with white space and named groups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.core.output_format import (
    Arguments,
    ArgumentStyle,
    Calls,
    CallStyle,
    OutputFormat,
    Reasoning,
    ValueStyle,
)

_REASONING: Final = ("reasoning_content", "reasoning", "thinking")
_KEYS: Final = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_GROUP: Final = re.compile(r"\(\?P<(\w+)>(?:\\.|\[(?:\\.|[^\]])*\]|[^()\\])*\)")
_SPACE: Final = re.compile(r"\\s[*+]\??|\(\?:\\s[*+]\)\??")
_PLACEHOLDER: Final = re.compile(r"\{(content\.)?(\w+)\}")

Field = Mapping[str, Any]


def format_of_response_template(stored: Any) -> OutputFormat:
    """Return the format of a response template.

    Raises:
        RequestError: it has another version, or a form that `OutputFormat` does not have.
    """
    if not isinstance(stored, dict) or not isinstance(stored.get("fields"), dict):
        raise _refused("must be an object with `fields`")
    if stored.get("version", 1) != 1 or stored.keys() - _KEYS:
        raise _refused("is not of version 1")
    fields: dict[str, Field] = stored["fields"]
    if not all(isinstance(field, dict) for field in fields.values()):
        raise _refused("must have objects as fields")
    reasoning = next((fields[name] for name in _REASONING if name in fields), None)
    content, calls = fields.get("content", {}), fields.get("tool_calls")
    opened = _literal(content, "open")
    return OutputFormat(
        name="response_template",
        source="response_template",
        reasoning=None if reasoning is None else _reasoning(reasoning),
        calls=None if calls is None else _calls(calls),
        content_open=opened,
        content_close=_literal(content, "close") if opened else "",
    )


def _refused(problem: str) -> RequestError:
    return RequestError(problem, param="response_template")


def _reasoning(field: Field) -> Reasoning:
    found = Reasoning(open=_literal(field, "open"), close=_literal(field, "close"))
    if not found.open or not found.close:
        raise _refused("has reasoning without an opening and a closing text")
    return found


def _literal(field: Field, side: str) -> str:
    """Return the text of a side of a region; empty if it has none."""
    parts = _parts(field, side)
    if len(parts) != 1:
        raise _refused(f"has groups in {side}_pattern of a field that is not tool_calls")
    return parts[0]


def _parts(field: Field, side: str) -> list[str]:
    """Return the texts around the named groups of a side: at even places texts, at odd ones names of groups."""
    if (pattern := field.get(f"{side}_pattern")) is not None:
        return _texts_of(pattern)
    text = field.get(side, "")
    text = text[0] if isinstance(text, list) and text else text
    if not isinstance(text, str):
        raise _refused(f"has a field whose `{side}` is no text")
    return [text]


def _texts_of(pattern: Any) -> list[str]:
    """Return the texts and the names of groups of a pattern."""
    if not isinstance(pattern, str):
        raise _refused("has a pattern that is no text")
    parts = []
    end = 0
    for group in _GROUP.finditer(pattern):
        parts += [_unescaped(pattern[end : group.start()]), group[1]]
        end = group.end()
    return [*parts, _unescaped(pattern[end:])]


def _unescaped(pattern: str) -> str:
    """Return the text that a pattern without alternatives and repetitions matches, without its optional white space."""
    found = _SPACE.sub("", pattern).replace(r"\n", "\n")
    if re.search(r"(?<!\\)[.*+?()|\[\]{}^$]|\\[A-Za-z0-9]", found.replace("\\\\", "")):
        raise _refused(f"has a pattern that is no plain text: {pattern}")
    return re.sub(r"\\(.)", r"\1", found)


def _calls(field: Field) -> Calls:
    parser, arguments = field.get("content", "text"), field.get("content_args") or {}
    opened, close = _parts(field, "open"), _literal(field, "close")
    if not opened[0].strip():
        raise _refused("has tool_calls without an opening text")
    if parser == "python-call-list":
        return Calls(style=CallStyle.PYTHONIC, section_open=opened[0] + "[", section_close="]" + close, between=", ")
    if len(opened) == 3 and opened[1] == "name":
        return Calls(
            style=CallStyle.NAMED,
            open=opened[0],
            after_name=opened[2],
            close=close,
            arguments=_arguments(parser, arguments),
            parallel=bool(field.get("repeats")),
        )
    if parser != "json" or len(opened) != 1 or arguments:
        raise _refused(f"has tool_calls in a form that is not known ({parser})")
    name_key, arguments_key = _keys(field)
    if field.get("transform_each"):
        return Calls(
            section_open=opened[0] + "[",
            section_close="]" + close,
            between=", ",
            name_key=name_key,
            arguments_key=arguments_key,
        )
    return Calls(
        open=opened[0],
        close=close,
        name_key=name_key,
        arguments_key=arguments_key,
        parallel=bool(field.get("repeats")),
    )


def _keys(field: Field) -> tuple[str, str]:
    """Return the keys of name and arguments in the object of a call; of several objects, each is transformed."""
    transform, each = field.get("transform"), bool(field.get("transform_each"))
    function = transform.get("function") if isinstance(transform, dict) else None
    if function == "{content}" and not each:
        return "name", "arguments"
    if isinstance(function, dict):
        found = [_PLACEHOLDER.fullmatch(str(function.get(key))) for key in ("name", "arguments")]
        keys = [place[2] for place in found if place is not None and bool(place[1]) is not each]
        if len(keys) == 2:
            return keys[0], keys[1]
    raise _refused("has tool_calls with a transform that is not known")


def _arguments(parser: str, options: Mapping[str, Any]) -> Arguments:
    if parser == "json" and not options:
        return Arguments()
    delimiters = options.get("string_delims")
    if parser == "json" and options.get("unquoted_keys") and isinstance(delimiters, list) and len(delimiters) == 1:
        return Arguments(style=ArgumentStyle.GEMMA, item_separator=",", key_separator=":", quote=str(delimiters[0][0]))
    if parser == "xml-inline" and not options.get("merge_duplicates"):
        parts = _texts_of(options.get("tag_pattern"))
        value = (options.get("value_parser") or {}).get("name", "text")
        lenient = ((options.get("value_parser") or {}).get("args") or {}).get("allow_non_json")
        if parts[1::2] == ["key", "value"] and value in ("text", "json"):
            return Arguments(
                style=ArgumentStyle.TAGGED,
                key_open=parts[0],
                key_close=parts[2],
                value_close=parts[4],
                values=ValueStyle.JSON if value == "json" and not lenient else ValueStyle.RAW,
            )
    raise _refused(f"has arguments in a form that is not known ({parser})")
