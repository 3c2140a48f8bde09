"""Streams of messages: they fold into whole messages, are kept alive, and end exactly once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from test_tool_streams import said

from agent_kit import CITY, QWEN3, agent, let_grammars_die
from agent_script import MARKERS, THOUGHT, reply
from ferrum.core.errors import EngineDead
from ferrum.engine.messages import Ended
from messages_kit import SAID, THINK, WEATHER, ask, events_in, events_of, folded
from scripted_model import scripted_parts
from serve_kit import Served, serving

LONG = f"<think>\n{THOUGHT * 200}\n</think>\n\nHello."


@pytest.fixture(scope="module")
def assistant() -> Iterator[Served]:
    with agent(said) as served:
        yield served


@pytest.fixture
def slow() -> Iterator[Served]:
    with agent(lambda prompt: LONG if "long" in prompt else reply(prompt), seconds_per_step=0.002) as served:
        yield served


def options(draw: random.Random) -> dict[str, Any]:
    look = {**WEATHER, "name": "look", "strict": True, "input_schema": CITY}
    every: dict[str, list[Any]] = {
        "tools": [[], [WEATHER], [WEATHER, look]],
        "max_tokens": [600, 7, 40],
        "thinking": [None, THINK, {**THINK, "display": "omitted"}, {"type": "enabled", "budget_tokens": 5}],
        "stop_sequences": [None, None, ["plain"], ["é"]],
    }
    body = {name: draw.choice(values) for name, values in every.items()}
    if body["tools"]:
        kind = draw.choice(["auto", "auto", "none", "any"])
        parallel = {} if kind == "none" else {"disable_parallel_tool_use": draw.random() < 0.3}
        body["tool_choice"] = {"type": kind, **parallel}
    return body


def check(assistant: Served, seed: int) -> None:
    draw = random.Random(seed)
    messages = [{"role": "user", "content": f"seed {seed}"}]
    body = {"messages": messages, "request_id": f"run{seed}", **options(draw)}
    streamed, whole = folded(events_of(assistant, **body)), ask(assistant, **body)
    for message in (streamed, whole):
        usage = message["usage"]
        usage["input_tokens"] += usage.pop("cache_read_input_tokens")  # the second prompt is cached
    assert streamed == whole, body
    assert all(block["text"] for block in whole["content"] if block["type"] == "text")


def test_streams_fold_into_messages(assistant: Served) -> None:
    for seed in range(24):
        check(assistant, seed)


@pytest.mark.soak
def test_a_thousand_streams_fold_into_messages(assistant: Served) -> None:
    for seed in range(1000, 2000):
        check(assistant, seed)


def test_silent_stream_gets_pings() -> None:
    parts = scripted_parts(reply, QWEN3, MARKERS, seconds_per_step=0.05)
    with serving(parts, keep_alive_seconds=0.01) as served:
        body = {"model": "scripted", "max_tokens": 3, "messages": SAID, "stream": True}
        text = served.post("/v1/messages", **body).text
    assert text.startswith('event: ping\ndata: {"type":"ping"}\n\n')
    assert folded(events_in(text))["stop_reason"] == "max_tokens"


def ends_with_an_error(events: list[Any]) -> bool:
    terminal = [event["type"] for event in events if event["type"] in ("error", "message_delta", "message_stop")]
    return terminal == ["error"] and events[-1]["type"] == "error"


def test_stream_whose_grammar_dies_ends_with_one_error(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    let_grammars_die(monkeypatch)
    events = events_of(slow, tools=[WEATHER])
    assert ends_with_an_error(events)
    assert set(events[-1]) == {"type", "error", "request_id"} and events[-1]["request_id"]
    monkeypatch.undo()
    assert folded(events_of(slow, tools=[WEATHER]))["stop_reason"] == "tool_use"


def test_client_that_leaves_ends_its_request(slow: Served) -> None:
    body = {"max_tokens": 9000, "messages": [{"role": "user", "content": "a long thought"}], "thinking": THINK}
    with slow.http.stream("POST", "/v1/messages", json={**body, "stream": True}) as response:
        next(response.iter_lines())
    slow.wait_idle()
    assert folded(events_of(slow, tools=[WEATHER]))["stop_reason"] == "tool_use"


@pytest.mark.parametrize("end", ["cancelled", "engine"])
def test_stream_that_is_ended_has_one_error(end: str) -> None:
    with agent(lambda prompt: LONG, seconds_per_step=0.002) as served:
        body = {"max_tokens": 9000, "messages": SAID, "thinking": THINK, "stream": True, "request_id": "mine"}
        with served.http.stream("POST", "/v1/messages", json=body) as response:
            pieces = response.iter_text()
            text = next(pieces)
            if end == "engine":
                served.service.model().client.router._deliver(Ended(EngineDead("killed by the test")))
            else:
                assert served.http.delete("/v1/requests/mine").json()["id"] == "msg_mine"
            text += "".join(pieces)
    events = events_in(text)
    assert ends_with_an_error(events)
    assert events[-1]["error"]["type"] == ("api_error" if end == "engine" else "invalid_request_error")
