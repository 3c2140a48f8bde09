"""Conversion of clients' messages to the form that chat templates read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chat_samples import LLAMA, TEMPLATES
from ferrum.core.errors import RequestError, Unsupported
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.template_messages import for_template, joined

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
CALLED = {**CALL, "function": {"name": "f", "arguments": {"x": 1}}}
PARTS = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]

GUARD = """\
{%- for message in messages %}{{ message['role'] }}: \
{%- for content in message['content'] %}{% if content['type'] == 'text' %}[{{ content['text'] }}]{% endif %}{% endfor %}
{%- endfor %}"""
"""Reads parts only, as the template of Llama Guard 3 does."""

EITHER = "{% for m in messages %}{{ m.content if m.content is string else m.content[0]['text'] }}{% endfor %}"


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({"role": "developer", "content": "D"}, {"role": "system", "content": "D"}),
        ({"role": "user", "content": PARTS}, {"role": "user", "content": "a\nb"}),
        (assistant(content=PARTS), assistant(content="ab")),
        (assistant(content=None, refusal="no"), assistant(content="no", refusal="no")),
        (assistant(content="x", tool_calls=[]), assistant(content="x")),
        (assistant(content="x", tool_calls=None), assistant(content="x")),
        (assistant(content="x", tool_calls=[CALL]), assistant(content="x", tool_calls=[CALLED])),
        (assistant(content="x", tool_calls=[CALLED]), assistant(content="x", tool_calls=[CALLED])),
        (
            assistant(content="x", function_call=CALL["function"]),
            assistant(
                content="x", tool_calls=[{"id": "call00001", "type": "function", "function": CALLED["function"]}]
            ),
        ),
        (
            assistant(content="x", tool_calls=[{"function": {"name": "f", "arguments": None}}]),
            assistant(content="x", tool_calls=[{"function": {"name": "f", "arguments": {}}}]),
        ),
        (
            {"role": "ipython", "content": {"output": 5}, "extra": [1]},
            {"role": "ipython", "content": {"output": 5}, "extra": [1]},
        ),
    ],
)
def test_messages_are_converted_for_templates(given: dict[str, Any], made: dict[str, Any]) -> None:
    assert for_template([USER, given]) == [USER, made]


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize(
    ("sent", "made"),
    [
        *((empty, {}) for empty in ("", " ", "null", "{}")),
        *((broken, {"input": broken}) for broken in ('{"city":', "rain", "[1]", "5", "[" * 100_000)),
    ],
)
def test_arguments_that_are_no_object_are_an_input(sent: str, made: dict[str, Any], as_text: bool) -> None:
    """OpenAI's reference: "the model does not always generate valid JSON"; clients send it back as it was."""
    called = assistant(content="", tool_calls=[{"function": {"name": "f", "arguments": sent}}])
    [message] = for_template([called], argument_text=as_text)
    arguments = message["tool_calls"][0]["function"]["arguments"]
    assert (json.loads(arguments) if as_text else arguments) == made


def test_result_in_the_older_form_is_that_of_the_call_before_it() -> None:
    called = assistant(content=None, function_call=CALL["function"])
    made = for_template([USER, called, {"role": "function", "name": "f", "content": "1"}])
    assert made[2] == {"role": "tool", "name": "f", "content": "1", "tool_call_id": made[1]["tool_calls"][0]["id"]}


def test_conversion_does_not_change_its_argument() -> None:
    message = assistant(content=[dict(part) for part in PARTS], tool_calls=[CALL], function_call=None)
    for_template([message])
    assert message == assistant(content=PARTS, tool_calls=[CALL], function_call=None)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": []}, "messages[1].content"),
        ({"role": "user", "content": [5]}, "messages[1].content[0]"),
        ({"role": "user", "content": [*PARTS, {"type": "text"}]}, "messages[1].content[2].text"),
        (assistant(tool_calls={"a": 1}), "messages[1].tool_calls"),
        (assistant(tool_calls=[5]), "messages[1].tool_calls[0]"),
        (assistant(tool_calls=[CALL, {}]), "messages[1].tool_calls[1].function"),
        (assistant(tool_calls=[{**CALL, "id": {}}]), "messages[1].tool_calls[0].id"),
        (assistant(tool_calls=[{**CALL, "type": "search"}]), "messages[1].tool_calls[0].type"),
        (assistant(tool_calls=[{**CALL, "type": "custom"}]), "messages[1].tool_calls[0].custom"),
        (
            assistant(tool_calls=[{"function": {"name": "f", "arguments": [1]}}]),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (assistant(function_call={}), "messages[1].function_call"),
        (assistant(function_call={}, tool_calls=[CALL]), "messages[1].function_call"),
    ],
)
def test_error_names_the_place_of_an_invalid_value(message: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        for_template([USER, message])
    assert caught.value.param == param


def test_content_other_than_text_is_unsupported() -> None:
    with pytest.raises(Unsupported) as caught:
        for_template([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    assert caught.value.feature == "messages[0].content[0].type"
    assert joined("a", "x") == "a" and joined(PARTS, "x") == "a\nb"


@pytest.mark.parametrize("content", ["mayonnaise?", [{"type": "text", "text": "mayonnaise?"}]])
def test_template_that_reads_parts_gets_parts(content: Any) -> None:
    template = ChatTemplate(GUARD)
    assert template.reads_parts
    made = for_template([{"role": "user", "content": content}], as_parts=True)
    assert template.render(made) == "user:[mayonnaise?]"


@pytest.mark.parametrize(
    "source", [*TEMPLATES.values(), EITHER, "{{ 'text' }}", "{{ raise_exception('text') }}", "{% 'text"]
)
def test_other_templates_get_text(source: str) -> None:
    assert not ChatTemplate(source).reads_parts


def test_empty_tool_calls_are_dropped() -> None:
    template = ChatTemplate(LLAMA, {"bos_token": ""})
    said = [USER, assistant(content="SECRET"), USER]
    empty = [USER, assistant(content="SECRET", tool_calls=[]), USER]
    assert template.render(for_template(empty)) == template.render(for_template(said))
