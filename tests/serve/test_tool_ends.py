"""A chat with tools ends exactly once, also when its client leaves, or its grammar or its engine dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent_kit import QUESTION, QWEN3, WEATHER, agent, let_grammars_die
from agent_script import MARKERS, THOUGHT, reply
from ferrum.client.llm import LLM
from ferrum.core.errors import EngineDead
from ferrum.core.params import SamplingParams
from ferrum.engine.messages import Ended
from ferrum.formats.output_parts import PartKind
from ferrum.grammar.reply_guidance import ChatOptions
from ferrum.grammar.tools import tools_of
from scripted_model import scripted_parts
from serve_kit import Served

LONG = f"<think>\n{THOUGHT * 200}\n</think>\n\nHello."


@pytest.fixture
def slow() -> Iterator[Served]:
    with agent(lambda prompt: LONG if "long" in prompt else reply(prompt), seconds_per_step=0.002) as served:
        yield served


def events_of(server: Served, **body: Any) -> list[dict[str, Any]]:
    response = server.post("/v1/chat/completions", **{"messages": QUESTION, "tools": [WEATHER], "stream": True, **body})
    assert response.status_code == 200
    return [json.loads(line[6:]) for line in response.text.split("\n\n") if line and line != "data: [DONE]"]


def test_a_stream_whose_grammar_dies_ends_with_one_error(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    let_grammars_die(monkeypatch)
    events = events_of(slow)
    assert [event for event in events if "error" in event] == events[-1:]
    assert "the fuel is used up" not in json.dumps(events[:-1])
    assert all(choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"])
    monkeypatch.undo()
    assert events_of(slow)[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_client_that_leaves_ends_its_request(slow: Served) -> None:
    said = [{"role": "user", "content": "a long thought"}]
    with slow.http.stream(
        "POST", "/v1/chat/completions", json={"messages": said, "tools": [WEATHER], "stream": True}
    ) as response:
        next(response.iter_lines())
    slow.wait_idle()
    assert events_of(slow)[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_an_engine_that_dies_ends_a_call_with_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with agent(lambda prompt: LONG, seconds_per_step=0.002) as served:
        said = [{"role": "user", "content": "a long thought"}]
        with served.http.stream(
            "POST", "/v1/chat/completions", json={"messages": said, "tools": [WEATHER], "stream": True}
        ) as response:
            lines = response.iter_lines()
            next(lines)
            served.service.model().client.router._deliver(Ended(EngineDead("killed by the test")))
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert [event for event in events if "error" in event] == events[-1:]


def test_llm_chats_with_tools() -> None:
    with LLM.from_parts(scripted_parts(reply, QWEN3, MARKERS)) as llm:
        params = SamplingParams(max_tokens=400, temperature=0)
        [output] = llm.chat(QUESTION, params, use_tqdm=False, tools=[WEATHER])
        [choice] = output.outputs
        assert (choice.text, choice.reasoning) == ("", THOUGHT)
        assert [(each.name, json.loads(each.arguments)) for each in choice.tool_calls] == [
            ("get_weather", {"city": "Paris"})
        ]
        options = ChatOptions(choice=tools_of([WEATHER]).choice("auto"))
        kinds = {part.kind for delta in llm.stream_chat(QUESTION, params, options) for part in delta.parts or ()}
        assert kinds == {PartKind.REASONING, PartKind.CALL, PartKind.ARGUMENTS, PartKind.END}
        assert output.metrics.usage.reasoning_tokens > len(THOUGHT)
