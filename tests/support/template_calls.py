"""Conversations with tool calls, rendered by the chat templates of published models, and what their outputs are."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ferrum.core.errors import FerrumError
from ferrum.core.output_format import OutputFormat, Tool
from ferrum.formats.output_parts import Call
from ferrum.text.chat_template import ChatTemplate

TEMPLATES = Path(__file__).parents[1] / "data" / "templates"

_PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "options": {"type": "object"},
    "exact": {"type": "boolean"},
    "hours": {"type": "array", "items": {"type": "number"}},
}
_SCHEMAS: dict[str, Any] = {
    "weather": {"type": "object", "properties": _PROPERTIES, "required": ["city"]},
    "weather-radar_2": {"type": "object", "properties": {"text": {"type": "string"}}},
    "ping": {"type": "object", "properties": {}},
}
TOOLS = tuple(Tool(name=name, parameters=json.dumps(schema)) for name, schema in _SCHEMAS.items())
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}
    for name, schema in _SCHEMAS.items()
]

Arguments = dict[str, Any]
CALLS: tuple[tuple[tuple[str, Arguments], ...], ...] = (
    (),
    (("ping", {}),),
    (("weather", {"city": "Bonn"}),),
    (("weather", {"city": "007", "days": 3, "exact": True, "hours": [1, 2.5]}),),
    (("weather", {"city": 'São "Paulo" 🦀', "options": {"a": {"b": [1, "x", None]}, "c": "<d>"}}),),
    (("weather-radar_2", {"text": "  line\n\n\tsecond <b>\\n'quoted'</b> line"}), ("ping", {})),
    (("weather", {"city": "Bonn", "days": -1}), ("weather", {"city": "true"}), ("ping", {})),
)
"""Of one message each: none to three, with nested objects, quotes, texts like numbers, and no arguments."""

_SPECIAL = re.compile(
    "<\\|[^|<>\\s]{1,40}\\|>|<\uff5c[^<>]{1,40}\uff5c>|</?s>|<(?:BOS|EOS)>|<sep>|<seed:eos>|</?assistant>"
)

QUESTION = {"role": "user", "content": "Weather?"}


def source_of(name: str) -> str:
    """Return a template."""
    return (TEMPLATES / f"{name}.jinja").read_text()


def calls_of(calls: Sequence[tuple[str, Arguments]], arguments_as_text: bool) -> list[dict[str, Any]]:
    """Return calls as clients send them back."""
    return [
        {
            "id": f"call0000{index}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": json.dumps(each, ensure_ascii=False) if arguments_as_text else each,
            },
        }
        for index, (name, each) in enumerate(calls)
    ]


@cache
def _template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<BOS>", "eos_token": "<EOS>"})


def _rendered(source: str, messages: list[dict[str, Any]], prompt: bool) -> str:
    variables = {"date_string": "1 Jan 2030", "datetime": "1 Jan 2030", "functions": "[]"}
    return _template(source).render(messages, add_generation_prompt=prompt, tools=_TOOLS, template_kwargs=variables)


def output_of(source: str, form: OutputFormat, calls: Sequence[tuple[str, Arguments]], **fields: str) -> str:
    """Return what a model writes that has the template: a rendered message from the end of the prompt on."""
    texts = (False, True)
    error: FerrumError | None = None
    for arguments_as_text in texts:
        message = {"role": "assistant", **fields}
        if calls:
            message["tool_calls"] = calls_of(calls, arguments_as_text)  # type: ignore[assignment]
        try:
            whole = _rendered(source, [QUESTION, message], prompt=False)
            break
        except FerrumError as found:
            error = found
    else:
        assert error is not None
        raise error
    header = _rendered(source, [QUESTION], prompt=True)
    for text in () if form.reasoning is None else (form.reasoning.close.strip(), form.reasoning.open.strip()):
        if header.rstrip().endswith(text):
            header = header.rstrip().removesuffix(text)
    header = header.rstrip().removesuffix(form.prefix)
    place = len(header) if whole.startswith(header) else whole.rindex(header[-12:]) + 12
    output = whole[place:]
    if form.reasoning is not None and output.startswith(close := form.reasoning.close.strip()):
        output = output.removeprefix(close)
    return output.removeprefix(form.prefix)


def special_texts(source: str) -> tuple[str, ...]:
    """Return the texts of a template that are special tokens of its model."""
    return tuple(dict.fromkeys([*_SPECIAL.findall(source), "<BOS>", "<EOS>"]))


def read_calls(calls: Sequence[Call]) -> list[tuple[str, Arguments]]:
    """Return names and arguments of parsed calls."""
    return [(each.name, json.loads(each.arguments)) for each in calls]
