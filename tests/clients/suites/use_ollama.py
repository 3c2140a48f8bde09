"""Ollama's Python client: chats with tools, thinking and formats, completions, embeddings and errors, unchanged."""

from __future__ import annotations

import json
import os

import pytest
from ollama import Client, ResponseError

QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
}


def get_weather(city: str) -> str:
    """Return the weather of a city.

    Args:
        city: its name.
    """
    return f"sunny in {city}"


@pytest.fixture
def client() -> Client:
    """A client of a scripted assistant with tools; see tests/support/agent_script.py."""
    return Client(host=os.environ["AGENT_URL"])


def test_a_function_is_called_and_its_result_is_read(client: Client) -> None:
    asked = client.chat("scripted", QUESTION, tools=[get_weather])
    [call] = asked.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_name": "get_weather", "content": get_weather(**call.function.arguments)}
    answer = client.chat("scripted", [*QUESTION, asked.message, result], tools=[get_weather])
    assert answer.message.content.endswith("sunny in Paris") and not answer.message.tool_calls


def test_streams_have_thinking_content_and_calls(client: Client) -> None:
    parts = list(client.chat("scripted:latest", QUESTION, tools=[get_weather], think=True, stream=True))
    assert "".join(part.message.thinking or "" for part in parts)
    [call] = [call for part in parts for call in part.message.tool_calls or ()]
    assert call.function.arguments == {"city": "Paris"}
    assert parts[-1].done and parts[-1].done_reason == "stop" and parts[-1].eval_duration > 0
    said = [{"role": "user", "content": "hello"}]
    parts = list(client.chat("scripted", said, think=False, stream=True))
    assert "".join(part.message.content for part in parts) == "Hello."
    assert not any(part.message.thinking for part in parts)


def test_a_format_is_enforced(client: Client) -> None:
    asked = [{"role": "user", "content": "a city as JSON"}]
    reply = client.chat("scripted", asked, format=CITY)
    assert json.loads(reply.message.content) == {"city": "Paris", "degrees": 21}


def test_completions_and_models(client: Client) -> None:
    assert client.generate("scripted", "hello", think=False).response == "Hello."
    streamed = client.generate("scripted", "hello", think=False, stream=True, options={"num_predict": 3})
    parts = list(streamed)
    assert "".join(part.response for part in parts) == "Hel" and parts[-1].done_reason == "length"
    assert [each.model for each in client.list().models] == ["scripted:latest"]
    assert client.ps().models[0].model == "scripted:latest"
    assert {"tools", "thinking"} <= set(client.show("scripted").capabilities)


def test_errors_are_those_of_the_client(client: Client) -> None:
    with pytest.raises(ResponseError, match="not served") as missing:
        client.chat("other", QUESTION)
    assert missing.value.status_code == 404
    with pytest.raises(ResponseError, match="num_ctx") as large:
        client.chat("scripted", QUESTION, options={"num_ctx": 1 << 20})
    assert large.value.status_code == 400
    with pytest.raises(ResponseError, match="ferrum serve MODEL"):
        client.pull("scripted")


def test_embeddings(url: str) -> None:
    client = Client(host=url)
    reply = client.embed(client.list().models[0].model, ["one", "two"])
    assert len(reply.embeddings) == 2
    for vector in reply.embeddings:
        assert sum(each * each for each in vector) == pytest.approx(1, abs=1e-5)
