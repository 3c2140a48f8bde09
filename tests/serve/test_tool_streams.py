"""Random replies with reasoning and calls: a stream folds into the reply, and each ends exactly once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import pytest

from agent_kit import CITY, WEATHER, agent, ask, chunks_of, folded
from random_replies import said
from serve_kit import Served

CUSTOM: Final = {"type": "custom", "custom": {"name": "shell"}}


@pytest.fixture(scope="module")
def assistant() -> Iterator[Served]:
    with agent(said) as served:
        yield served


def options(draw: random.Random) -> dict[str, Any]:
    look = {"type": "function", "function": {"name": "look", "strict": True, "parameters": CITY}}
    every: dict[str, list[Any]] = {
        "tools": [[], [WEATHER], [WEATHER, look, CUSTOM]],
        "n": [1, 1, 2],
        "max_tokens": [600, 7, 40],
        "parallel_tool_calls": [True, False],
        "include_reasoning": [True, True, False],
        "thinking_token_budget": [None, None, 0, 5],
        "stop": [None, None, ["plain"], ["é"]],
        "logprobs": [False, False, True],
        "stream_options": [{"include_usage": True}],
    }
    body = {name: draw.choice(values) for name, values in every.items()}
    if body["tools"]:
        body["tool_choice"] = draw.choice(["auto", "auto", "auto", "none", "required"])
    return body


def check(assistant: Served, seed: int) -> None:
    draw = random.Random(seed)
    body = {"messages": [{"role": "user", "content": f"seed {seed}"}], "request_id": f"run{seed}", **options(draw)}
    streamed = chunks_of(assistant, **body)
    del body["stream_options"]
    whole = ask(assistant, **body)
    choices = folded(streamed)
    assert len(choices) == len(whole["choices"])
    for each in whole["choices"]:
        del each["message"]["refusal"]
        assert choices[each["index"]]["message"] == each["message"], body
        assert choices[each["index"]]["finish_reason"] == each["finish_reason"], body
    usage = streamed[-1]["usage"]
    for counts in (usage, whole["usage"]):
        counts.pop("prompt_tokens_details")
    assert usage == whole["usage"]


def test_streams_fold_into_replies(assistant: Served) -> None:
    for seed in range(24):
        check(assistant, seed)


@pytest.mark.soak
def test_a_thousand_streams_fold_into_replies(assistant: Served) -> None:
    for seed in range(1000, 2000):
        check(assistant, seed)
