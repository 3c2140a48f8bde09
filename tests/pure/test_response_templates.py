"""Response templates of tokenizers: translated formats mean what transformers' own parser reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS as TRANSFORMERS
from transformers.utils.chat_parsing import parse_response

from ferrum.core.errors import RequestError
from ferrum.core.output_format import ArgumentStyle, CallStyle, OutputFormat
from ferrum.formats.find import find_format
from ferrum.formats.response_template import format_of_response_template
from ferrum.formats.writing import write_output
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.model_files import DirectoryFiles
from real_templates import TEMPLATES

PUBLISHED = {names[0]: stored for names, stored in TRANSFORMERS.items()}
"""Those that transformers uses for models whose tokenizers have none."""

CALLS = [("get_weather", {"city": "Zürich", "unit": "C"}), ("look_up", {"word": "a b"})]

LIST: dict[str, Any] = {
    "start_anchor": "<a>",
    "fields": {
        "thinking": {"open": ["[THINK]", "<think>"], "close_pattern": r"\s*\[/THINK\]"},
        "tool_calls": {
            "open": "[CALLS]",
            "close": "[/CALLS]",
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{tool}", "arguments": "{args}"}},
            "transform_each": True,
        },
        "content": {"open": "[TEXT]", "close": "[/TEXT]"},
    },
}
PYTHON: dict[str, Any] = {
    "start_anchor": "<a>",
    "fields": {
        "content": {},
        "tool_calls": {
            "open": "<|call|>",
            "close": "<|/call|>",
            "content": "python-call-list",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
            "transform_each": True,
        },
    },
}


@pytest.mark.parametrize("stored", [*PUBLISHED.values(), LIST, PYTHON], ids=[*PUBLISHED, "list", "python"])
def test_transformers_reads_what_the_translated_format_writes(stored: dict[str, Any]) -> None:
    format = format_of_response_template(stored)
    reasoning = None if format.reasoning is None else "Hm."
    text = write_output(format, reasoning, "It rains." if format.content_open else None, CALLS)
    read = parse_response(text, stored, prefix="")
    calls = [call["function"] for call in read["tool_calls"]]
    assert [(call["name"], call["arguments"]) for call in calls] == CALLS
    assert [read[name] for name in ("reasoning_content", "thinking") if name in read] == (
        [reasoning] if reasoning else []
    )
    assert not format.content_open or read["content"] == "It rains."


def test_forms_of_calls_are_translated() -> None:
    styles = {name: format_of_response_template(stored).calls for name, stored in PUBLISHED.items()}
    assert {name: (calls.style, calls.arguments.style) for name, calls in styles.items() if calls} == {
        "qwen2": (CallStyle.OBJECT, ArgumentStyle.JSON),
        "qwen3_5": (CallStyle.NAMED, ArgumentStyle.TAGGED),
        "gemma4": (CallStyle.NAMED, ArgumentStyle.GEMMA),
    }


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"fields": []},
        {"fields": {"tool_calls": 5}},
        {"fields": {"tool_calls": {"open": 5}}},
        {"fields": {"tool_calls": {"open": "<c>", "content": "kv-lines"}}},
        {"fields": {"tool_calls": {"open_pattern": "<c>|<d>", "content": "json"}}},
        {"fields": {"tool_calls": {"open": "<c>", "content": "json", "transform": {"function": {"name": "{x}"}}}}},
        {"fields": {"reasoning_content": {"open": "<think>"}}},
        {"fields": {"thinking": {"open": "<t>", "close_pattern": r"(?P<x>\d+)</t>"}}},
        {"unknown": 1},
    ],
)
def test_other_forms_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        format_of_response_template(PUBLISHED["qwen2"] | change)
    assert caught.value.param == "response_template"


def found(tmp_path: Path, stored: Any, template: str) -> OutputFormat | None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"response_template": stored}))
    return find_format(TEMPLATES[template], DirectoryFiles(tmp_path), None).format


def test_white_space_comes_from_the_chat_template(tmp_path: Path) -> None:
    format = found(tmp_path, PUBLISHED["qwen2"], "Qwen-Qwen3-0.6B")
    assert format is not None and format.calls is not None
    assert (format.source, format.calls.open) == ("response_template", "<tool_call>\n")


def test_response_template_comes_before_analysis(tmp_path: Path) -> None:
    format = found(tmp_path, PUBLISHED["gemma4"], "Qwen-Qwen3-0.6B")
    assert format is not None and format.calls is not None
    assert (format.source, format.calls.open) == ("response_template", "<|tool_call>call:")


def test_unknown_response_template_is_ignored_with_a_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    format = found(tmp_path, {"version": 7, "fields": {}}, "Qwen-Qwen3-0.6B")
    assert format is not None and format.source == "template" and "version 1" in caplog.text


def test_tools_that_the_chat_template_leaves_out_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"response_template": PUBLISHED["qwen2"]}))
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    refused = find_format(template, DirectoryFiles(tmp_path), None)
    assert refused.reason and refused.format is not None and refused.format.calls is None
