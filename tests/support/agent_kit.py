"""A server of the scripted assistant, and what tests ask it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import agent_script
from ferrum.guides.guide_state import GuideState
from scripted_model import Script, scripted_parts
from serve_kit import Served, serving

TEMPLATES: Final = Path(__file__).parents[1] / "data" / "templates"
QWEN3: Final = (TEMPLATES / "Qwen-Qwen3-0.6B.jinja").read_text()
QUESTION: Final = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CITY: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}

CONSTRAINTS: Final[dict[str, Any]] = {
    "response_format": {"type": "json_object"},
    "structured_outputs": {"choice": ["a"]},
    "guided_json": {"type": "integer"},
    "guided_regex": "a*",
    "guided_choice": ["a"],
    "guided_grammar": 'root ::= "a"',
    "json_schema": {"type": "integer"},
    "response_schema": {"type": "integer"},
    "regex": "a*",
    "grammar": 'root ::= "a"',
    "ebnf": 'root ::= "a"',
    "structural_tag": {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
        "triggers": ["<f"],
    },
}
"""Constraints on the output, which a request to ignore end tokens contradicts."""


@contextmanager
def agent(
    script: Script = agent_script.reply, markers: Sequence[str] = agent_script.MARKERS, **options: float
) -> Iterator[Served]:
    """Run a server of an assistant that speaks by a script, with Qwen3's template."""
    with serving(scripted_parts(script, QWEN3, markers, **options)) as served:
        yield served


def let_grammars_die(monkeypatch: pytest.MonkeyPatch, after: int = 20) -> None:
    """Let the grammar of a request fail when it computes its mask of that number."""
    found, taken = GuideState.mask, 0

    def dying(state: GuideState) -> bytes | None:
        nonlocal taken
        taken += 1
        if taken == after:
            raise RuntimeError("the fuel is used up")
        return found(state)

    monkeypatch.setattr(GuideState, "mask", dying)


def ask(server: Served, **body: Any) -> Any:
    """Return the reply to a chat, which must be one."""
    response = server.post("/v1/chat/completions", **{"messages": QUESTION, **body})
    assert response.status_code == 200, response.text
    return response.json()


def chunks_of(server: Served, **body: Any) -> list[Any]:
    """Return the chunks of a streamed chat, which must end with the end of a stream."""
    response = server.post("/v1/chat/completions", **{"messages": QUESTION, "stream": True, **body})
    assert response.status_code == 200, response.text
    *lines, last = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert last == "[DONE]"
    return [json.loads(line) for line in lines]


def folded(chunks: Iterable[Any]) -> dict[int, dict[str, Any]]:
    """Fold chunks as clients do: texts are joined, calls are found by their index. Return choices by index."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for each in chunk["choices"]:
            choice = choices.setdefault(each["index"], {"message": {}, "finish_reason": None})
            _join(choice["message"], each["delta"])
            if each["finish_reason"] is not None:
                assert choice["finish_reason"] is None, "two ends"
                choice["finish_reason"] = each["finish_reason"]
    return choices


def _join(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if name == "tool_calls":
            calls = whole.setdefault(name, [])
            for each in value:
                if each["index"] == len(calls):
                    calls.append({})
                _join(calls[each["index"]], {key: given for key, given in each.items() if key != "index"})
        elif isinstance(value, dict):
            _join(whole.setdefault(name, {}), value)
        elif isinstance(value, str) and isinstance(whole.get(name), str) and name not in ("id", "type", "role"):
            whole[name] += value
        elif value is not None or name not in whole:
            whole[name] = value
