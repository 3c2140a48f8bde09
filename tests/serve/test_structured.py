"""Structured output over HTTP, under the names of several servers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_kit import CITY, CONSTRAINTS, WEATHER, ask
from serve_kit import USER, Served, error_of

ASKED = [{"role": "user", "content": "a city as JSON"}]
OTHER = [{"role": "user", "content": "no tool"}]


def content(server: Served, **body: Any) -> str:
    reply = ask(server, **{"messages": ASKED, "max_tokens": 500, **body})
    assert reply["choices"][0]["finish_reason"] == "stop", reply
    return str(reply["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object", "schema": CITY}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}},
        {"structured_outputs": {"json": CITY}},
        {"guided_json": CITY},
        {"json_schema": json.dumps(CITY)},
        {"response_schema": CITY},
    ],
)
def test_every_name_of_a_schema_gives_its_json(assistant: Served, body: dict[str, Any]) -> None:
    assert json.loads(content(assistant, **body)) == {"city": "Paris", "degrees": 21}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ("yes", "no")),
        ({"guided_choice": ["yes", "no"]}, ("yes", "no")),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, ("aaa",)),
        ({"regex": "ab"}, ("ab",)),
        ({"grammar": 'root ::= "x" "y"'}, ("xy",)),
        ({"structured_outputs": {"grammar": 'start: "x" "y"'}}, ("xy",)),
    ],
)
def test_other_constraints_hold(assistant: Served, body: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert content(assistant, messages=OTHER, **body).strip() in expected


def test_a_constraint_begins_after_the_reasoning(assistant: Served) -> None:
    reply = ask(assistant, messages=ASKED, response_format={"type": "json_object"})
    assert reply["choices"][0]["message"]["reasoning"]


def test_a_reply_with_tools_and_a_format_is_one_of_both(assistant: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    assert json.loads(content(assistant, tools=[WEATHER], response_format=form)) == {"city": "Paris", "degrees": 21}
    called = ask(assistant, tools=[WEATHER], response_format=form)
    assert called["choices"][0]["finish_reason"] == "tool_calls"


def test_a_grammar_beyond_the_vocabulary_is_an_error_of_the_request(server: Served) -> None:
    error = error_of(server.complete(regex="õ"), 400)
    assert error["code"] == "no_token_allowed"


def test_completions_are_constrained_too(assistant: Served) -> None:
    body = {"prompt": "<|im_start|>user\nno tool", "structured_outputs": {"choice": ["yes", "no"]}, "max_tokens": 9}
    assert assistant.post("/v1/completions", **body).json()["choices"][0]["text"] in ("yes", "no")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"grammar": "root ::= ("}, "grammar"),
    ],
)
def test_malformed_constraints_are_refused_by_name(assistant: Served, body: dict[str, Any], param: str) -> None:
    error = error_of(assistant.post("/v1/chat/completions", messages=ASKED, **body), 400)
    assert error["param"].startswith(param)


def test_a_schema_that_cannot_be_enforced_is_refused_with_a_pointer(assistant: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "contains": {"type": "integer"}}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    error = error_of(assistant.post("/v1/chat/completions", messages=ASKED, response_format=form), 400)
    assert error["code"] == "invalid_json_schema" and "/properties/a/contains" in error["message"]
    assert error["param"] == "response_format.json_schema.schema"


@pytest.mark.parametrize("field", [each for each in CONSTRAINTS if each != "structural_tag"])  # tags limit only tags
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_constraint_changes_the_output(server: Served, path: str, field: str) -> None:
    body = {"messages": USER} if "chat" in path else {"prompt": "hello"}
    body |= {"model": "fake", "seed": 1, "max_tokens": 12}
    constrained = {**body, field: CONSTRAINTS[field]}
    assert server.post(path, **constrained).json()["choices"] != server.post(path, **body).json()["choices"]
    assert error_of(server.post(path, **constrained, ignore_eos=True), 400)["param"] == "ignore_eos"
