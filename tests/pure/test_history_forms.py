"""Histories with calls and reasoning, rendered as published templates want them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ferrum.core.errors import RequestError
from ferrum.text.chat_template import ChatTemplate
from real_templates import TEMPLATES

ASKED = {"role": "user", "content": "Weather?"}
ODD = '{"city":"Bonn",  "days":1.0}'
THOUGHT = "Is it wet?"
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Looks out.", "parameters": {}}}]

VERBATIM = {
    *("Bielik-11B-v3.0-Instruct", "Qwen-Qwen3-0.6B", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Reka-Edge"),
    *("mistralai-Ministral-3-14B-Reasoning-2512", "ibm-granite-granite-4.0", "upstage-Solar-Open-100B"),
    "meetkai-functionary-medium-v3.2",
}
"""Some templates that write arguments given as text as they are."""

RESPELT = {"Qwen-Qwen2.5-7B-Instruct", "moonshotai-Kimi-K2", "Qwen3-Coder", "GLM-4.6"}
"""Some that write arguments themselves; given a text, they would quote it or fail."""


def said(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", **fields}


def calling(arguments: str, **fields: Any) -> dict[str, Any]:
    call = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return said(tool_calls=[call], **fields)


def rendered(template: ChatTemplate, *messages: dict[str, Any], **options: Any) -> str:
    options = {"tools": TOOLS} | options
    return template.render(template.prepare([ASKED, *messages]), add_generation_prompt=False, **options)


@pytest.mark.parametrize("name", sorted(VERBATIM))
def test_argument_text_is_written_as_the_client_sent_it(name: str) -> None:
    assert ODD in rendered(TEMPLATES[name], calling(ODD))


@pytest.mark.parametrize("name", sorted(RESPELT))
def test_argument_text_is_parsed_for_templates_that_write_arguments(name: str) -> None:
    text = rendered(TEMPLATES[name], calling(ODD))
    assert "Bonn" in text and "1.0" in text and ODD not in text and '\\"' not in text


def test_empty_arguments_are_an_empty_object() -> None:
    for name in sorted(VERBATIM):
        for empty in ("", "null"):
            assert rendered(TEMPLATES[name], calling(empty)) == rendered(TEMPLATES[name], calling("{}"))


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "thinking", "part"])
@pytest.mark.parametrize(
    ("name", "written", "options"),
    [
        ("Qwen-Qwen3-0.6B", f"<think>\n{THOUGHT}\n</think>", {}),
        ("GLM-4.6", f"<think>{THOUGHT}</think>", {}),
        ("deepseek-ai-DeepSeek-V3.2", f"<think>{THOUGHT}</think>", {"template_kwargs": {"thinking": True}}),
        ("deepseek-ai-DeepSeek-V4", f"<think>{THOUGHT}</think>", {"template_kwargs": {"thinking": True}}),
        ("openai-gpt-oss-120b", f"<|channel|>analysis<|message|>{THOUGHT}<|end|>", {}),
        ("mistralai-Ministral-3-14B-Reasoning-2512", f"[THINK]{THOUGHT}[/THINK]", {}),
        ("upstage-Solar-Open-100B", f"<|think|>{THOUGHT}<|end|>", {}),
    ],
)
def test_reasoning_is_written_whatever_the_client_calls_it(
    name: str, written: str, options: dict[str, Any], field: str
) -> None:
    fields = {"content": [{"type": "thinking", "thinking": THOUGHT}]} if field == "part" else {field: THOUGHT}
    assert written in rendered(TEMPLATES[name], calling("{}", **fields), **options)


def test_reasoning_and_content_before_a_call_join_if_the_template_refuses_both() -> None:
    text = rendered(TEMPLATES["openai-gpt-oss-120b"], calling("{}", content="Let me look.", reasoning=THOUGHT))
    assert f"<|channel|>analysis<|message|>{THOUGHT}\nLet me look.<|end|>" in text


def test_parts_of_reasoning_may_have_parts() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}, {"type": "text", "text": "Dry."}]
    text = rendered(TEMPLATES["mistralai-Ministral-3-14B-Reasoning-2512"], said(content=parts))
    assert f"[THINK]{THOUGHT}[/THINK]Dry." in text


def test_reasoning_part_must_have_a_text() -> None:
    with pytest.raises(RequestError) as caught:
        rendered(TEMPLATES["GLM-4.6"], said(content=[{"type": "thinking"}]))
    assert caught.value.param == "messages[1].content[0].thinking"


def test_templates_that_read_bare_functions_get_them() -> None:
    source = "{% for tool in tools %}[{{ tool.name }}: {{ tool.description }}]{% endfor %}"
    assert rendered(ChatTemplate(source)) == "[weather: Looks out.]"
    enveloped = ChatTemplate(source.replace("tool.", "tool.function."))
    assert rendered(enveloped) == "[weather: Looks out.]"


@pytest.mark.parametrize("name", ["mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"])
def test_ids_of_other_servers_are_shortened_where_the_template_refuses_them(name: str) -> None:
    sent = calling("{}")
    sent["tool_calls"][0]["id"] = "call_aVeryLongIdOfAnotherServer"
    result = {"role": "tool", "tool_call_id": "call_aVeryLongIdOfAnotherServer", "content": "rain"}
    text = rendered(TEMPLATES[name], sent, result)
    [short] = set(re.findall(r"[0-9a-f]{9}", text))
    assert text.count(short) == 2 and "AnotherServer" not in text
    kept = rendered(TEMPLATES[name], calling("{}"), result | {"tool_call_id": "call00001"})
    assert kept.count("call00001") == 2 and len(kept) == len(text)


def test_ids_of_other_templates_stay() -> None:
    sent = calling("{}")
    sent["tool_calls"][0]["id"] = "functions.weather:0"
    template = ChatTemplate(
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }}{% endfor %}{% endfor %}"
    )
    assert rendered(template, sent) == "functions.weather:0"
