"""Random responses: a stream folds into the whole response, and each ends in exactly one event."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from agent_kit import CITY, agent, let_grammars_die
from agent_script import MARKERS, THOUGHT, reply
from ferrum.core.errors import EngineDead
from ferrum.engine.messages import Ended
from random_replies import said
from responses_kit import FLAT, PATH, checked_events, events_of, folded, respond
from serve_kit import Served

SHELL: Final = {"type": "custom", "name": "shell"}
LOOK: Final = {"type": "function", "name": "look", "strict": True, "parameters": CITY}
SPACE: Final = {"type": "namespace", "name": "space", "description": "", "tools": [{**FLAT, "name": "unknown"}]}
SEARCH: Final = {"type": "tool_search", "execution": "client"}
LONG: Final = f"<think>\n{THOUGHT * 200}\n</think>\n\nHello."


@pytest.fixture(scope="module")
def assistant() -> Iterator[Served]:
    with agent(said) as served:
        yield served


def options(draw: random.Random) -> dict[str, Any]:
    every: dict[str, list[Any]] = {
        "tools": [[], [FLAT], [FLAT, LOOK, SHELL], [SPACE, SEARCH, {**SHELL, "name": "get_weather"}]],
        "max_output_tokens": [600, 7, 40],
        "parallel_tool_calls": [True, False],
        "include": [[], ["reasoning.encrypted_content"]],
        "reasoning": [{}, {"summary": "auto"}, {"effort": "none"}],
    }
    body = {name: draw.choice(values) for name, values in every.items()}
    if body["tools"]:
        body["tool_choice"] = draw.choice(["auto", "auto", "auto", "none", "required"])
    return body


def check(assistant: Served, seed: int) -> None:
    draw = random.Random(seed)
    body = {"input": f"seed {seed}", "request_id": f"run{seed}", **options(draw)}
    events = events_of(assistant, **body)
    whole, last = respond(assistant, **body), events[-1]["response"]
    for each in (whole, last):
        del each["created_at"], each["usage"]["input_tokens_details"]
    assert last == whole, body
    assert folded(events) == whole["output"], body
    assert events[-1]["type"] == f"response.{whole['status']}"
    assert all(each["status"] in ("completed", whole["status"]) for each in whole["output"])


def test_streams_fold_into_responses(assistant: Served) -> None:
    for seed in range(24):
        check(assistant, seed)


@pytest.mark.soak
def test_a_thousand_streams_fold_into_responses(assistant: Served) -> None:
    for seed in range(1000, 2000):
        check(assistant, seed)


@pytest.fixture
def slow() -> Iterator[Served]:
    with agent(lambda prompt: LONG if "long" in prompt else reply(prompt), MARKERS, seconds_per_step=0.002) as served:
        yield served


def test_a_stream_whose_grammar_dies_fails_once(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    let_grammars_die(monkeypatch)
    events = events_of(slow, tools=[FLAT])
    assert events[-1]["type"] == "response.failed" and events[-1]["response"]["status"] == "failed"
    assert set(events[-1]["response"]["error"]) == {"code", "message", "param", "type"}
    assert folded(events)[-1]["type"] == events[-1]["response"]["output"][-1]["type"]
    assert events[-1]["response"]["output"][-1]["status"] == "incomplete"
    monkeypatch.undo()
    assert events_of(slow, tools=[FLAT])[-1]["type"] == "response.completed"


def test_a_client_that_leaves_ends_its_response(slow: Served) -> None:
    with slow.http.stream("POST", PATH, json={"input": "a long thought", "stream": True}) as response:
        next(response.iter_lines())
    slow.wait_idle()
    assert events_of(slow)[-1]["type"] == "response.completed"


@pytest.mark.parametrize("end", ["engine", "cancel"])
def test_an_engine_or_a_cancel_ends_a_stream_once(slow: Served, end: str) -> None:
    body = {"input": "a long thought", "stream": True, "request_id": "mine"}
    with slow.http.stream("POST", PATH, json=body) as response:
        lines = response.iter_lines()
        first = next(lines)
        if end == "engine":
            slow.service.model().client.router._deliver(Ended(EngineDead("killed by the test")))
        else:
            assert slow.http.delete("/v1/requests/mine").json()["id"] == "resp_mine"
        events = checked_events("\n".join([first, *lines]) + "\n")
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["type"] == ("engine_dead" if end == "engine" else "request_cancelled")


def test_a_failure_before_the_first_event_has_a_status(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    let_grammars_die(monkeypatch, after=1)
    form = {"type": "json_object"}
    body = {"input": "json", "reasoning": {"effort": "none"}, "text": {"format": form}, "stream": True}
    response = slow.post(PATH, **body)
    assert response.status_code >= 400 and json.loads(response.text)["error"]["message"]
