"""Tools that are valid for OpenAI's, Anthropic's and Ollama's clients reach every published template with tools."""

from __future__ import annotations

from typing import Any

import pytest

from ferrum.core.errors import FerrumError, RequestError
from ferrum.text.chat_template import ChatTemplate
from real_templates import TEMPLATES

ASKED = [{"role": "user", "content": "Weather?"}]
DEFINED = {"X": {"type": "object", "properties": {"zebra": {"type": "integer"}}}}


def taking(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


PROPERTIES: tuple[Any, ...] = (
    {},
    {"description": "Where."},
    {"type": "string", "description": None},
    {"enum": ["a", 1, None, True]},
    {"const": 5},
    {"type": "null"},
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"allOf": [{"type": "string"}, {"minLength": 1}]},
    {"type": "array"},
    {"type": "array", "items": True},
    {"type": "array", "items": {"type": "array"}},
    {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": ["integer", "null"]}]}},
    {"type": "array", "items": {"$ref": "#/$defs/X"}},
    {"type": "object"},
    {"type": "object", "properties": {"inner": {}}, "additionalProperties": {"type": "string"}},
    {"type": "object", "default": {"a": 1}},
    {"$ref": "#/$defs/X"},
)
SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"description": None, "parameters": None, "strict": None},
    {"description": "Looks out."},
    {"parameters": {}},
    {"parameters": {"type": "object"}},
    {"parameters": {"type": "object", "properties": None, "required": None}},
    {"parameters": taking()},
    {"parameters": {"$ref": "#/$defs/X", "$defs": DEFINED}},
    *({"parameters": {**taking(zebra=each), "$defs": DEFINED}} for each in PROPERTIES),
    *({"description": "Looks out.", "parameters": taking(zebra=each)} for each in PROPERTIES[:10]),
)


def prompt(template: ChatTemplate, *tools: Any) -> str:
    return template.render(template.prepare(ASKED), tools=tools or None)


def shows(name: str) -> bool:
    """Return whether a template writes a tool that has everything."""
    function = {"name": "look", "description": "Looks out.", "parameters": taking(zebra={"type": "string"})}
    try:
        return "zebra" in prompt(TEMPLATES[name], {"type": "function", "function": function})
    except FerrumError:
        return False


WITH_TOOLS = sorted(filter(shows, TEMPLATES))


def test_most_templates_write_tools() -> None:
    assert len(WITH_TOOLS) == 44


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_tools_of_all_shapes_are_in_the_prompt(name: str) -> None:
    for shape in SHAPES:
        function = {"name": "quorvim", **shape}
        text = prompt(TEMPLATES[name], {"type": "function", "function": function})
        assert "quorvim" in text and text == prompt(TEMPLATES[name], {"function": function}), shape
        assert "zebra" in text or "zebra" not in str(shape), shape


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_null_fields_of_tools_are_absent(name: str) -> None:
    function = {"name": "look", "description": "Looks out.", "parameters": taking(zebra={"type": "string"})}
    nulls = {**function, "strict": None}
    nulls["parameters"] = {**taking(zebra={"type": "string", "description": None}), "required": None}
    made = [prompt(TEMPLATES[name], {"type": "function", "function": each}) for each in (function, nulls)]
    assert made[0] == made[1]


def test_nulls_that_are_values_stay() -> None:
    template = ChatTemplate("{{ tools | tojson }}")
    values = {"default": None, "const": None, "enum": [None], "examples": [None]}
    assert '{"default": null, "const": null, "enum": [null], "examples": [null]}' in prompt(
        template, {"type": "function", "function": {"name": "look", "parameters": taking(zebra=values)}}
    )
    assert '"properties": {"default": {"type": "string"}}' in prompt(
        template, {"type": "function", "function": {"name": "look", "parameters": taking(default={"type": "string"})}}
    )


def test_template_that_reads_everything_gets_what_the_client_sent() -> None:
    template = ChatTemplate("{{ tools | tojson }}")
    assert prompt(template, {"type": "function", "function": {"name": "look"}}) == (
        '[{"type": "function", "function": {"name": "look"}}]'
    )


@pytest.mark.parametrize("origin", [None, "chat_template.jinja"])
def test_error_of_tools_names_them(origin: str | None) -> None:
    picky = "{% for t in tools or [] %}{{ t.function.parameters.properties.city.type.name.x }}{% endfor %}"
    with pytest.raises(RequestError) as caught:
        prompt(ChatTemplate(picky, origin=origin), {"type": "function", "function": {"name": "look"}})
    assert caught.value.param == "tools"
    with pytest.raises(RequestError) as caught:
        prompt(ChatTemplate(picky + "{{ raise_exception('no') }}", origin=origin), {"function": {"name": "look"}})
    assert caught.value.param != "tools"
