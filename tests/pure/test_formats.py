"""Output formats of 50 published chat templates: found by analysis, completed or replaced by hand-written ones."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import format_table
from ferrum.core.errors import ConfigError
from ferrum.core.output_format import CallStyle, OutputFormat
from ferrum.formats import find as facts
from ferrum.formats.analysis import TemplateFacts, analyse
from ferrum.formats.find import chosen_format, find_format, opens_thought, prompt_reasoning
from ferrum.formats.known_formats import KNOWN, known_by_template
from ferrum.formats.output_parts import new_id
from ferrum.text.chat_template import ChatTemplate
from real_templates import SPECIAL, TEMPLATES
from source_tree import REPOSITORY

WITHOUT_TOOLS = {
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "fireworks-ai-llama-3-firefunction-v2",
    "google-gemma-2-2b-it",
    "llama-cpp-deepseek-r1",
}
WITH_TOOLS = [name for name in TEMPLATES if name not in WITHOUT_TOOLS]

REFUSED = {"muse-glimmer": "the chat template writes the name of a call more than once"}


@cache
def analyses() -> dict[str, TemplateFacts]:
    """Return what analysis alone finds; not on import, where every process of the tests would wait for it."""
    return {name: analyse(template, use_known=False) for name, template in TEMPLATES.items()}


def test_all_but_one_of_the_templates_that_render_tools_have_a_format() -> None:
    found = {name: find_format(TEMPLATES[name], None, None) for name in WITH_TOOLS}
    assert {name: each.reason for name, each in found.items() if each.reason} == REFUSED
    assert all(each.format and each.format.calls for name, each in found.items() if name not in REFUSED)
    assert {name for name, each in analyses().items() if not each.renders_tools} == WITHOUT_TOOLS
    assert (len(TEMPLATES), len(WITH_TOOLS)) == (50, 44)


def test_analysis_alone_finds_most_formats() -> None:
    assert sum(1 for name in WITH_TOOLS if (found := analyses()[name].format) and found.calls) == 38


def test_templates_that_write_no_tools_are_refused() -> None:
    for name in TEMPLATES.keys() - set(WITH_TOOLS):
        found = find_format(TEMPLATES[name], None, None)
        assert found.reason == "the chat template does not write tools into the prompt"
        assert found.format is None or found.format.calls is None


def texts_of(format: OutputFormat) -> tuple[object, ...]:
    """Return the markers and style of calls without white space."""
    calls = format.calls
    assert calls is not None
    arguments = calls.arguments
    texts = (
        *(calls.section_open + calls.open, calls.after_name, calls.close + calls.section_close, calls.name_key),
        *(calls.arguments_key, calls.id_separator, arguments.key_open, arguments.key_close, arguments.value_open),
        *(arguments.value_close, arguments.string_mark, arguments.other_mark, *calls.first_keys, *calls.extra_keys),
    )
    return calls.style, calls.id_place, arguments.style, *(re.sub(r"\s", "", text) for text in texts)


def test_analysis_finds_the_markers_that_were_written_down_by_hand() -> None:
    """Hand-written formats come from the model makers' documents, not from renderings."""
    unknown = []
    for name in (name for name in WITH_TOOLS if analyses()[name].reason == ""):
        found, known = analyses()[name].format, known_by_template(TEMPLATES[name].source_for_tools)
        assert found is not None, name
        if known is not None:
            assert texts_of(found) == texts_of(known), name
        else:
            unknown.append(name)
    assert unknown == ["tencent-Hy3"]


def test_white_space_is_that_of_the_template() -> None:
    closes = {}
    for name in ("Qwen-Qwen3-0.6B", "Bielik-11B-v3.0-Instruct", "Reka-Edge"):
        format = find_format(TEMPLATES[name], None, None).format
        assert format is not None and format.reasoning is not None and format.calls is not None
        closes[name] = (format.reasoning.close, format.calls.between)
    assert closes == {
        "Qwen-Qwen3-0.6B": ("\n</think>\n\n", "\n"),
        "Bielik-11B-v3.0-Instruct": ("\n</think>\n", "\n"),
        "Reka-Edge": ("\n</think>\n\n", ""),
    }


def test_hand_written_formats_add_what_templates_do_not_show() -> None:
    format = find_format(TEMPLATES["meta-llama-Llama-3.1-8B-Instruct"], None, None).format
    assert format is not None and format.calls is not None
    assert (format.source, format.calls.aliases, format.calls.parallel) == ("template", ("<|python_tag|>",), False)


@pytest.mark.parametrize(
    ("name", "variables", "opened"),
    [
        ("Qwen3.5-4B", {}, True),
        ("Qwen3.5-4B", {"enable_thinking": False}, False),
        ("Qwen-Qwen3-0.6B", {}, False),
        ("Apriel-1.6-15b-Thinker-fixed", {}, True),
        ("deepseek-ai-DeepSeek-V3.2", {"thinking": True}, True),
        ("deepseek-ai-DeepSeek-V3.2", {}, False),
        ("openai-gpt-oss-120b", {}, False),
    ],
)
def test_prompts_that_open_a_thought_are_recognised(name: str, variables: dict[str, Any], opened: bool) -> None:
    template = TEMPLATES[name]
    format = find_format(template, None, None).format
    assert format is not None
    prompt = template.render([{"role": "user", "content": "What does <think> mean?"}], template_kwargs=variables)
    assert opens_thought(prompt, format) is opened


@pytest.mark.parametrize(
    ("said", "opened"), [("<think>\nSo", True), ("<think>\nSo\n</think>\n\nYes", False), ("Yes", False)]
)
def test_continued_thoughts_are_recognised(said: str, opened: bool) -> None:
    format = find_format(TEMPLATES["Qwen-Qwen3-0.6B"], None, None).format
    source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    messages = [{"role": "user", "content": "<think>?"}, {"role": "assistant", "content": said}]
    prompt = ChatTemplate(source).render(messages, continue_final_message=True)
    assert format is not None and opens_thought(prompt, format, said) is opened


def test_variables_of_reasoning_are_those_that_change_the_prompt() -> None:
    names = ("Qwen-Qwen3-0.6B", "deepseek-ai-DeepSeek-V3.1", "openai-gpt-oss-120b", "Qwen-Qwen2.5-7B-Instruct")
    assert [prompt_reasoning(TEMPLATES[name]) for name in names] == [
        ("enable_thinking",),
        ("enable_thinking", "thinking"),
        ("reasoning_effort",),
        (),
    ]


def test_template_that_writes_a_call_otherwise_gets_no_hand_written_format() -> None:
    """A fine-tune's template may have the texts of a known format and write something else."""
    source = TEMPLATES["Qwen-Qwen2.5-7B-Instruct"].sources["default"]
    changed = source.replace("{{- tool_call.name }}", "{{- tool_call.name | upper }}")
    assert changed != source and known_by_template(changed) is KNOWN["hermes"]
    found = find_format(ChatTemplate(changed, SPECIAL), None, None)
    assert found.format is None and found.reason == "the chat template does not write the names of calls"


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("source", [LOOP, "{{ messages }}" * 80_000, "{% if", "{{ 1 / 0 }}"])
def test_hostile_template_has_no_format_and_takes_little_time(source: str) -> None:
    start = time.monotonic()
    found = find_format(ChatTemplate(source), None, None)
    assert found.format is None and found.reason and time.monotonic() - start < 3


def test_facts_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(TEMPLATES["Qwen-Qwen3-0.6B"].sources["default"] + "{# once #}")
    first = find_format(template, None, None)
    monkeypatch.setattr(facts, "analyse", None)
    assert find_format(ChatTemplate(template.sources["default"]), None, None) == first


def test_the_template_for_tools_is_analysed() -> None:
    plain, with_tools = (TEMPLATES[name].sources["default"] for name in ("google-gemma-2-2b-it", "Qwen-Qwen3-0.6B"))
    found = find_format(ChatTemplate({"default": plain, "tool_use": with_tools}), None, None)
    assert found.format is not None and found.format.calls is not None


def test_chosen_formats(tmp_path: Any) -> None:
    assert find_format(TEMPLATES["muse-glimmer"], None, "hermes").format == KNOWN["hermes"]
    [block] = re.findall(r"```json\n(.*?)```", (REPOSITORY / "docs" / "formats.md").read_text(), re.DOTALL)
    (tmp_path / "mine.json").write_text(block)
    mine = chosen_format(str(tmp_path / "mine.json"))
    assert mine.calls == KNOWN["hermes"].calls and mine.source == "file"
    (tmp_path / "same.json").write_text(KNOWN["harmony"].to_json())
    assert chosen_format(str(tmp_path / "same.json")) == replace(KNOWN["harmony"], source="file")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "neither a file nor a format"),
        ("{", "not JSON"),
        ('{"name": "x", "source": "y"}', "neither reasoning nor calls"),
        ('{"name": "x", "source": "y", "calls": {"style": "xml"}}', "style"),
        ('{"name": "x", "source": "y", "call": {}}', "call"),
    ],
)
def test_wrong_choice_is_named(tmp_path: Any, text: str | None, says: str) -> None:
    path = tmp_path / "mine.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        chosen_format(str(path))
    assert caught.value.param == "tool_format" and says in caught.value.message


def test_styles_cover_all_that_models_write() -> None:
    styles = {found.calls.style for each in analyses().values() if (found := each.format) and found.calls}
    assert styles == set(CallStyle)


def test_table_of_the_document_is_up_to_date() -> None:
    text = format_table.DOCUMENT.read_text("utf-8")
    assert format_table.with_table(text) == text, "run python tests/support/format_table.py"


def test_new_ids_of_calls_are_those_that_templates_accept() -> None:
    first, second = new_id("chatcmpl-1", 0, 0), new_id("chatcmpl-1", 0, 1)
    assert re.fullmatch(r"[A-Za-z0-9]{9}", first) and first != second


def test_template_that_writes_only_ids_has_the_format_whose_ids_have_names() -> None:
    """As the template of Kimi-K2.5."""
    source = (
        "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}"
        "<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}"
        "<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
        "<|tool_calls_section_end|>{% endif %}{% endfor %}"
    )
    found = find_format(ChatTemplate(source), None, None).format
    assert found is not None and found.calls == KNOWN["kimi-k2"].calls
