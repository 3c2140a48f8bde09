"""`ferrum formats` shows what was found, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from command_kit import Outcome
from ferrum.core.output_format import OutputFormat
from ferrum.formats.find import chosen_format, find_format
from real_templates import FOLDER, TEMPLATES


def model(tmp_path: Path, template: str | None = None) -> str:
    """Write a model that has only text files."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(TEMPLATES[template].sources["default"])
    return str(tmp_path)


def test_format_and_example_are_shown(ferrum: Callable[..., Outcome], tmp_path: Path) -> None:
    code, out, err = ferrum("formats", model(tmp_path, "Qwen-Qwen3-0.6B"))
    assert (code, err) == (0, "")
    assert "qwen3, from the chat template, by analysis" in out and "enable_thinking" in out
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}\n</tool_call>'
    assert f"<think>\nThe user wants the weather.\n</think>\n\n{call}" in out


def test_json_is_what_tool_format_reads(ferrum: Callable[..., Outcome], tmp_path: Path) -> None:
    code, out, _ = ferrum("formats", model(tmp_path, "GLM-4.6"), "--json")
    found = find_format(TEMPLATES["GLM-4.6"], None, None).format
    assert code == 0 and OutputFormat.from_json(out) == found
    path = tmp_path / "format.json"
    path.write_text(out)
    assert chosen_format(str(path)).calls == (found and found.calls)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "the model has no chat template."),
        ("google-gemma-2-2b-it", "does not write tools into the prompt. Choose a format with --tool-format"),
        ("muse-glimmer", "writes the name of a call more than once. Choose"),
    ],
)
def test_reason_is_shown(ferrum: Callable[..., Outcome], tmp_path: Path, template: str | None, reason: str) -> None:
    code, out, _ = ferrum("formats", model(tmp_path, template))
    assert code == 0 and "\nNo tools: " in out and reason in out


def test_options_replace_format_and_template(ferrum: Callable[..., Outcome], tmp_path: Path) -> None:
    path = model(tmp_path, "muse-glimmer")
    assert "harmony, from --tool-format" in ferrum("formats", path, "--tool-format", "harmony")[1]
    other = str(FOLDER / "Qwen3-Coder.jinja")
    assert "<function=get_weather>" in ferrum("formats", path, "--chat-template", other)[1]


def test_wrong_format_is_refused_before_the_model_is_found(ferrum: Callable[..., Outcome]) -> None:
    code, _, err = ferrum("formats", "nosuchmodel/", "--tool-format", "hermes2")
    assert code == 2 and "--tool-format 'hermes2' is neither a file nor a format" in err
