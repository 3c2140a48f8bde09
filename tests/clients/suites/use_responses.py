"""The Responses API and its store: the official SDK, unchanged."""

from __future__ import annotations

import json
import os
import time

import openai
import pytest
from openai import OpenAI

QUESTION = "What is the weather in Paris?"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture
def client() -> OpenAI:
    """A client of a scripted assistant with tools; see tests/support/agent_script.py."""
    return OpenAI(base_url=f"{os.environ['AGENT_URL']}/v1", api_key="none", max_retries=0)


def test_an_agent_continues_a_stored_response(client: OpenAI) -> None:
    first = client.responses.create(model="scripted", input=QUESTION, tools=[WEATHER])
    call = first.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Paris"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = client.responses.create(model="scripted", input=[result], tools=[WEATHER], previous_response_id=first.id)
    assert second.output_text.endswith("sunny")
    assert client.responses.retrieve(second.id) == second


def test_a_stream_is_what_is_stored(client: OpenAI) -> None:
    with client.responses.stream(model="scripted", input=QUESTION, tools=[WEATHER]) as stream:
        final = stream.get_final_response()
    stored = client.responses.retrieve(final.id)
    assert [each.id for each in stored.output] == [each.id for each in final.output]
    assert stored.output[-1].arguments == final.output[-1].arguments and stored.usage == final.usage


def test_input_items_are_listed_in_pages(client: OpenAI) -> None:
    sent = [{"role": "user", "content": f"no tool {place}"} for place in range(5)]
    response = client.responses.create(model="scripted", input=sent)
    listed = client.responses.input_items.list(response.id, limit=2, order="asc")
    assert [each.content[0].text for each in listed] == [each["content"] for each in sent]


def test_a_deleted_response_is_not_found(client: OpenAI) -> None:
    response = client.responses.create(model="scripted", input="no tool")
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_a_background_response_is_polled_streamed_and_cancelled(client: OpenAI) -> None:
    response = client.responses.create(model="scripted", input="no tool", background=True)
    while response.status in ("queued", "in_progress"):
        time.sleep(0.01)
        response = client.responses.retrieve(response.id)
    assert response.output_text == "Hello." and client.responses.cancel(response.id).status == "completed"
    events = list(client.responses.create(model="scripted", input="no tool", background=True, stream=True))
    again = list(client.responses.retrieve(events[0].response.id, stream=True, starting_after=2))
    assert again == events[3:] and again[-1].type == "response.completed"
    other = client.responses.create(model="scripted", input="no tool")
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(other.id)


def test_tokens_are_counted(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model="scripted", input=QUESTION, tools=[WEATHER])
    response = client.responses.create(model="scripted", input=QUESTION, tools=[WEATHER])
    assert counted.input_tokens == response.usage.input_tokens
