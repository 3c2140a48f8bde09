"""`ferrum chat --tools`: calls of each kind, and a context that their exchanges fill."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agent_script
from command_kit import Outcome
from scripted_model import scripted_parts

TEMPLATE = (Path(__file__).parents[1] / "data" / "templates" / "Qwen-Qwen3-0.6B.jinja").read_text()
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"type": "function", "function": {"name": "look", "description": "x" * 400, "parameters": CITY}}
CUSTOM = {"type": "custom", "custom": {"name": "look", "description": "Takes a city."}}

EXCHANGE = ["user", "assistant", "result", "assistant"]
Talk = Callable[..., tuple[str, str, list[str]]]


@pytest.fixture
def talk(ferrum: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Talk:
    """Return a function that types lines to a model with a tool; it returns both outputs and the model's prompts."""

    def run(tool: dict[str, Any], lines: list[str], *options: str, context: int = 65_536) -> tuple[str, str, list[str]]:
        prompts: list[str] = []

        def reply(prompt: str) -> str:
            if prompt not in prompts:
                prompts.append(prompt)
            return agent_script.reply(prompt)

        def build(model: str, **options: Any) -> Any:
            return scripted_parts(reply, TEMPLATE, agent_script.MARKERS, context=context)

        monkeypatch.setattr("ferrum.client.client_base.build", build)
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        (tmp_path / "tools.json").write_text(json.dumps([tool]))
        code, out, err = ferrum("chat", "m", "--tools", str(tmp_path / "tools.json"), *options)
        assert code == 0, err
        return out, err, prompts

    return run


def roles(prompt: str) -> list[str]:
    """Return who speaks in a prompt, after the system message; results of tools are user turns that are marked."""
    turns = prompt.split("<|im_start|>")[1:]
    names = ["result" if "<tool_response>" in turn else turn.split("\n")[0] for turn in turns]
    return [name for name in names if name != "system"]


@pytest.mark.parametrize("tool", [FUNCTION, CUSTOM], ids=["function", "custom"])
def test_answer_follows_the_result_of_a_call(talk: Talk, tool: dict[str, Any]) -> None:
    out, err, prompts = talk(tool, ["Hi", "sunny", "no tool"])
    assert f"{agent_script.ANSWER}sunny" in out and out.rstrip().endswith("Hello.")
    assert "must be" not in err and roles(prompts[-1]) == [*EXCHANGE, "user", "assistant"]


def test_exchanges_leave_whole_when_the_context_is_full(talk: Talk) -> None:
    """The description of the tool counts: without it, nothing would leave before the prompt is too long."""
    lines = [line for number in range(8) for line in (f"question {number}", f"result {number} " + "y" * 200)]
    out, err, prompts = talk(FUNCTION, lines, "--max-tokens", "300", context=2500)
    assert "maximum context" not in err and "oldest messages were dropped" in err
    assert [f"result {number}" in out for number in range(8)] == [True] * 8
    for prompt in prompts:
        found = roles(prompt)
        assert found[0] == "user" and found == (EXCHANGE * 8)[: len(found)]


def test_results_that_fill_the_context_drop_older_exchanges(talk: Talk) -> None:
    lines = ["first", "a" * 500, "second", "b" * 900]
    out, err, prompts = talk(FUNCTION, lines, "--max-tokens", "300", context=2500)
    assert "maximum context" not in err and "b" * 900 in out + prompts[-1]
    assert "first" not in prompts[-1] and "second" in prompts[-1]


def test_a_call_that_is_cut_asks_for_no_result(talk: Talk) -> None:
    _, err, prompts = talk(FUNCTION, ["Hi", "no tool"], "--max-tokens", "80")
    assert "the result of" not in err and "must be" not in err and len(prompts) == 2
