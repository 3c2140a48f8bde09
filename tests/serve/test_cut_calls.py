"""A call that a limit cuts, in every dialect: no markup in the content, and an end that says it is incomplete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest

import agent_kit
import messages_kit
import responses_kit
from agent_kit import QUESTION, WEATHER, agent
from ferrum.client.request_output import Delta
from ferrum.core.types import FinishReason
from ferrum.formats.output_parts import Part, PartKind
from ferrum.server.anthropic.fields import MessagesRequest
from ferrum.server.anthropic.replies import MessageBuilder
from ferrum.server.chat.ask import Asked
from ferrum.server.chat.turn import ReplyHeader
from ferrum.server.ollama.replies import OllamaBuilder
from ferrum.text.template_messages import function_of
from serve_kit import Served
from stream_kit import request_for

CALL: Final = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ARGUMENTS: Final = '{"city": "Paris"}'
SIZES: Final = {
    "in the marker": 1,
    "in the name": 14,
    "before the arguments": 30,
    "in the arguments": 50,
    "after the arguments": 56,
    "before the closing marker": 58,
}
"""Tokens: bytes, but the markers are a token each."""
CUT: Final = tuple(SIZES)[:4]
BEGUN: Final = tuple(SIZES)[3:]
NAME: Final = "get_weather"


@pytest.fixture(scope="module")
def assistant() -> Iterator[Served]:
    with agent(lambda _: CALL) as served:
        yield served


@pytest.mark.parametrize("place", SIZES)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_chats_send_what_there_is_of_a_cut_call(assistant: Served, place: str, choice: str) -> None:
    body = {"tools": [WEATHER], "max_tokens": SIZES[place], "tool_choice": choice}
    body["chat_template_kwargs"] = {"enable_thinking": False}
    whole = agent_kit.ask(assistant, **body)["choices"][0]
    streamed = agent_kit.folded(agent_kit.chunks_of(assistant, **body))[0]
    for each in (whole, streamed):
        assert each["finish_reason"] == "length" and not each["message"].get("content")
        calls = each["message"].get("tool_calls", [])
        assert [call["function"]["name"] for call in calls] == [NAME] * (place in BEGUN)
        assert all(ARGUMENTS.startswith(call["function"]["arguments"]) for call in calls)


@pytest.mark.parametrize("place", SIZES)
def test_responses_mark_a_cut_call_as_incomplete(assistant: Served, place: str) -> None:
    body = {"tools": [responses_kit.FLAT], "max_output_tokens": SIZES[place], "reasoning": {"effort": "none"}}
    whole = responses_kit.respond(assistant, **body)
    events = responses_kit.events_of(assistant, **body)
    statuses = ["incomplete" if place in CUT else "completed"] * (place in BEGUN)
    for response in (whole, events[-1]["response"]):
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert [(each["type"], each["status"]) for each in response["output"]] == [
            ("function_call", status) for status in statuses
        ]
    assert events[-1]["type"] == "response.incomplete"
    assert [each["status"] for each in responses_kit.folded(events)] == statuses


@pytest.mark.parametrize("place", SIZES)
def test_messages_with_a_cut_call_reach_their_limit(assistant: Served, place: str) -> None:
    tool = {"name": NAME, "input_schema": WEATHER["function"]["parameters"]}
    body = {"tools": [tool], "max_tokens": SIZES[place]}
    whole = messages_kit.ask(assistant, **body)
    for message in (whole, messages_kit.folded(messages_kit.events_of(assistant, **body))):
        assert message["stop_reason"] == "max_tokens"
        assert [each["type"] for each in message["content"]] == ["tool_use"] * (place in BEGUN)
        assert place in CUT or message["content"][0]["input"] == json.loads(ARGUMENTS)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", SIZES)
def test_ollama_leaves_a_cut_call_out(assistant: Served, place: str, stream: bool) -> None:
    options = {"num_predict": SIZES[place]}
    response = assistant.post(
        "/api/chat", messages=QUESTION, tools=[WEATHER], think=False, stream=stream, options=options
    )
    assert response.status_code == 200, response.text
    lines = [json.loads(line) for line in response.text.splitlines()]
    calls = [call["function"] for line in lines for call in line["message"].get("tool_calls", ())]
    assert not any(line["message"]["content"] for line in lines)
    assert (lines[-1]["done"], lines[-1]["done_reason"]) == (True, "length")
    assert [(call["name"], call["arguments"]) for call in calls] == [(NAME, json.loads(ARGUMENTS))] * (place not in CUT)


def test_a_call_that_a_stop_token_cuts_is_no_call(assistant: Served) -> None:
    choice = agent_kit.ask(
        assistant, tools=[WEATHER], stop_token_ids=[ord("P")], chat_template_kwargs={"enable_thinking": False}
    )["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "'


DIGITS: Final = "1" * 5000
STUCK: Final = f'{{"city": "Paris", "n": {DIGITS}'


@pytest.mark.parametrize("text", [f"{STUCK}}}", STUCK], ids=["whole", "stuck"])
def test_an_integer_of_thousands_of_digits_comes_out(text: str) -> None:
    """Python refuses to read more than 4300 digits. Models do get stuck in digits."""
    parts = (Part(PartKind.CALL, NAME), Part(PartKind.ARGUMENTS, text), Part(PartKind.END))
    delta = Delta(request_id="a", index=0, token_ids=(1,), text="", parts=parts, finish_reason=FinishReason.STOP)
    header = ReplyHeader("a", 0, "model", "x")
    asked = Asked((request_for(),))
    streamed, whole = (OllamaBuilder(header, asked, chat=True) for _ in range(2))
    whole.fold(0, delta)
    sent = [json.loads(line.json_bytes()) for line in (*streamed.chunks(0, delta), whole.whole())]
    read = {"city": "Paris", "n": DIGITS}
    assert [each["message"]["tool_calls"][0]["function"]["arguments"] for each in sent] == [read, read]
    body = MessagesRequest(messages=[{"role": "user", "content": "a"}], max_tokens=1)
    message = MessageBuilder(header, body, asked)
    message.fold(0, delta)
    [block] = json.loads(message.whole().json_bytes())["content"]
    assert block["input"] == read


def test_a_history_may_hold_an_integer_of_thousands_of_digits() -> None:
    for argument_text in (False, True):
        read = function_of({"name": NAME, "arguments": f"{STUCK}}}"}, "messages[0]", argument_text)
        assert DIGITS in str(read["arguments"])
