"""Tools over HTTP: calls of a scripted assistant, whole and streamed, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agent_kit import QUESTION, WEATHER, agent, ask, chunks_of, folded
from agent_script import ANSWER, THOUGHT
from serve_kit import Served, error_of

UNIT: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"enum": ["celsius", "kelvin"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
STRICT = {"type": "function", "function": {"name": "look", "strict": True, "parameters": UNIT}}
CUSTOM = {"type": "custom", "custom": {"name": "shell", "description": "Runs a command."}}


def call_of(reply: Any) -> tuple[str, Any]:
    [call] = reply["choices"][0]["message"]["tool_calls"]
    assert call["type"] == "function" and len(call["id"]) == 9
    return call["function"]["name"], json.loads(call["function"]["arguments"])


def test_a_call_is_a_call_and_reasoning_is_reasoning(assistant: Served) -> None:
    reply = ask(assistant, tools=[WEATHER])
    assert call_of(reply) == ("get_weather", {"city": "Paris"})
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert choice["message"]["reasoning"] == choice["message"]["reasoning_content"] == THOUGHT
    details = reply["usage"]["completion_tokens_details"]
    assert len(THOUGHT.encode()) <= details["reasoning_tokens"] <= len(THOUGHT.encode()) + 6


def test_an_agent_gets_its_answer(assistant: Served) -> None:
    message = ask(assistant, tools=[WEATHER])["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "21 degrees"}
    reply = ask(assistant, tools=[WEATHER], messages=[*QUESTION, message, result])
    choice = reply["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER + "21 degrees", "stop")


@pytest.mark.parametrize("said", ["What is the weather?", "the same twice", "no tool", "a city as JSON"])
@pytest.mark.parametrize("options", [{}, {"n": 2}, {"include_reasoning": False}, {"logprobs": True}])
def test_a_stream_folds_into_the_reply(assistant: Served, said: str, options: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": said}], "tools": [WEATHER], "request_id": "same", **options}
    reply = ask(assistant, **body)
    choices = folded(chunks_of(assistant, **body))
    for whole in reply["choices"]:
        whole["message"].pop("refusal")
        assert choices[whole["index"]]["message"] == whole["message"]
        assert choices[whole["index"]]["finish_reason"] == whole["finish_reason"]


def test_parallel_calls_are_several_and_can_be_one(assistant: Served) -> None:
    body = {"messages": [{"role": "user", "content": "the same twice"}], "tools": [WEATHER]}
    assert len(ask(assistant, **body)["choices"][0]["message"]["tool_calls"]) == 2
    assert call_of(ask(assistant, **body, parallel_tool_calls=False))[0] == "get_weather"


def test_a_choice_of_tools_holds(assistant: Served) -> None:
    named = {"type": "function", "function": {"name": "look"}}
    only = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    tools = [STRICT, WEATHER]
    for choice in (named, only):
        name, arguments = call_of(ask(assistant, tools=tools, tool_choice=choice, max_tokens=400))
        assert name == "look" and arguments["unit"] in ("celsius", "kelvin")
    said = [{"role": "user", "content": "no tool, please"}]
    forced = ask(assistant, tools=[STRICT], messages=said, tool_choice="required", max_tokens=400)
    assert call_of(forced)[0] == "look"
    plain = ask(assistant, tools=tools, messages=said, tool_choice="none")
    assert plain["choices"][0]["message"]["content"] == "Hello."


LOOSE: dict[str, Any] = {**UNIT, "properties": {**UNIT["properties"], "tags": {"type": "array", "uniqueItems": True}}}
"""A schema with a keyword that cannot be enforced."""


def forced(path: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request for a call of a tool that is not strict, in one of three dialects."""
    messages, limit = [{"role": "user", "content": "no tool, please"}], {"max_tokens": 400}
    if path == "/v1/messages":
        tool = {"name": "look", "input_schema": schema}
        return {"messages": messages, "tools": [tool], "tool_choice": {"type": "any"}, **limit}
    function = {"name": "look", "parameters": schema}
    if path == "/v1/responses":
        flat = {"type": "function", "strict": False, **function}
        return {"input": messages, "tools": [flat], "tool_choice": "required", "max_output_tokens": 400}
    return {
        "messages": messages,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        **limit,
    }


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_forced_call_keeps_its_schema_without_strict_or_names_it(assistant: Served, path: str) -> None:
    reply = assistant.post(path, model="scripted", **forced(path, UNIT))
    assert reply.status_code == 200 and "x-ferrum-unenforced" not in reply.headers
    assert re.search(r"unit\W+(celsius|kelvin)\W", reply.text)
    free = assistant.post(path, model="scripted", **forced(path, LOOSE))
    assert free.status_code == 200 and free.headers["x-ferrum-unenforced"] == "look"


def test_older_fields_have_an_older_reply(assistant: Served) -> None:
    body = {"functions": [WEATHER["function"]], "function_call": "auto"}
    choice = ask(assistant, **body)["choices"][0]
    assert json.loads(choice["message"]["function_call"]["arguments"]) == {"city": "Paris"}
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]
    streamed = folded(chunks_of(assistant, **body))[0]
    assert streamed["message"]["function_call"] == choice["message"]["function_call"]


def test_a_custom_tool_takes_a_text(assistant: Served) -> None:
    [call] = ask(assistant, tools=[CUSTOM])["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "shell", "input": "Paris"})
    history = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
    reply = ask(assistant, tools=[CUSTOM], messages=[*history, result])
    assert reply["choices"][0]["message"]["content"] == ANSWER + "done"


def test_a_budget_ends_the_reasoning(assistant: Served) -> None:
    reply = ask(assistant, messages=[{"role": "user", "content": "no tool"}], thinking_token_budget=9)
    message = reply["choices"][0]["message"]
    assert THOUGHT.startswith(message["reasoning"].strip()) and len(message["reasoning"]) < 12


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "functions": [WEATHER["function"]]}, "functions"),
        (
            {"tools": [{**CUSTOM, "custom": {"name": "x", "format": {"type": "grammar"}}}]},
            "tools[0].custom.format.grammar",
        ),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_malformed_tools_are_refused_by_name(assistant: Served, body: dict[str, Any], param: str) -> None:
    error = error_of(assistant.post("/v1/chat/completions", messages=QUESTION, **body), 400)
    assert error["param"] == param


def test_tools_of_a_model_without_a_format_are_refused(server: Served) -> None:
    assert error_of(server.chat(tools=[WEATHER]), 400)["param"] == "tools"


def test_reasoning_that_is_switched_off_does_not_open_before_what_must_come() -> None:
    """Qwen3's template ends the prompt with an empty thought then; an eager model tries to open another."""
    eager = "<think>\nAgain.\n</think>\n\nHello."
    off = {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 200}
    with agent(lambda _: eager) as served:
        called = ask(served, tools=[STRICT], tool_choice="required", **off)
        assert call_of(called)[0] == "look" and called["choices"][0]["message"].get("reasoning") is None
        limited = ask(served, structured_outputs={"choice": ["yes", "no"]}, **off)["choices"][0]["message"]
        assert limited["content"].strip() in ("yes", "no") and limited.get("reasoning") is None
        thought = ask(served, structured_outputs={"choice": ["yes", "no"]}, max_tokens=200)["choices"][0]["message"]
        assert thought["reasoning"] == "Again."


@pytest.mark.parametrize("name", ["auto", "none", "required"])
def test_a_tool_may_have_the_name_of_a_mode(assistant: Served, name: str) -> None:
    tools = [{"type": "function", "function": {**STRICT["function"], "name": name}}, WEATHER]
    choice = {"type": "function", "function": {"name": name}}
    reply = ask(assistant, tools=tools, tool_choice=choice, max_tokens=400)
    assert call_of(reply)[0] == name
    plain = [{"role": "user", "content": "no tool, please"}]
    assert ask(assistant, tools=tools, tool_choice="none", messages=plain)["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "empty",
    [{"functions": [], "tools": [WEATHER]}, {"tools": [], "functions": [WEATHER["function"]]}, {"grammar": ""}],
    ids=["functions", "tools", "grammar"],
)
def test_empty_fields_ask_for_nothing(assistant: Served, empty: dict[str, Any]) -> None:
    absent = {name: value for name, value in empty.items() if value}
    assert (
        ask(assistant, **empty)["choices"][0]["message"].keys()
        == ask(assistant, **absent)["choices"][0]["message"].keys()
    )
