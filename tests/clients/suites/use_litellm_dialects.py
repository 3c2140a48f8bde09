"""LiteLLM on the dialects of agents: its providers of Messages, Responses and Ollama, unchanged."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import litellm
import pytest
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}


class City(BaseModel):
    """What is known of a city."""

    city: str
    degrees: int


def options(provider: str) -> dict[str, Any]:
    """Return what a call of a provider needs for a scripted assistant; see tests/support/agent_script.py."""
    url = os.environ["AGENT_URL"]
    base = f"{url}/v1" if provider == "openai/responses" else url
    return {"model": f"{provider}/scripted", "api_base": base, "api_key": "none", "num_retries": 0, "max_tokens": 2000}


@pytest.fixture(scope="module", autouse=True)
def known_model() -> None:
    """Without an entry LiteLLM streams no Responses: it cuts whole ones into pieces, calls twice."""
    litellm.register_model({"scripted": {"litellm_provider": "openai", "supports_native_streaming": True}})


@pytest.fixture(params=["anthropic", "openai/responses", "ollama_chat"])
def light(request: pytest.FixtureRequest) -> dict[str, Any]:
    return options(request.param)


def test_tools_are_called_whole_and_streamed(light: dict[str, Any]) -> None:
    reply = litellm.completion(**light, messages=QUESTION, tools=[WEATHER])
    message = reply.choices[0].message
    [call] = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    assert reply.choices[0].finish_reason == "tool_calls"
    chunks = list(litellm.completion(**light, messages=QUESTION, tools=[WEATHER], stream=True))
    folded = litellm.stream_chunk_builder(chunks, messages=QUESTION)
    assert json.loads(folded.choices[0].message.tool_calls[0].function.arguments) == {"city": "Paris"}
    history = [*QUESTION, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    assert litellm.completion(**light, messages=history, tools=[WEATHER]).choices[0].message.content.endswith("rain")


def test_texts_are_streamed_and_counted(light: dict[str, Any]) -> None:
    said = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello?"}]
    reply = litellm.completion(**light, messages=said)
    assert reply.choices[0].message.content == "Hello." and reply.choices[0].finish_reason == "stop"
    assert reply.usage.prompt_tokens > 20 and reply.usage.completion_tokens >= 7
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**light, messages=said, stream=True)]
    assert "".join(pieces) == "Hello."
    assert asyncio.run(litellm.acompletion(**light, messages=said)).choices[0].message.content == "Hello."


def test_a_response_format_is_parsed(light: dict[str, Any]) -> None:
    by_tool = light["model"].startswith("anthropic/")  # LiteLLM asks Anthropic's API for a call with these arguments
    asked = [{"role": "user", "content": "a city, please" if by_tool else "a city as JSON"}]
    reply = litellm.completion(**light, messages=asked, response_format=City)
    assert City.model_validate_json(reply.choices[0].message.content) == City(city="Paris", degrees=21)


def test_responses_are_passed_through() -> None:
    where = {name: value for name, value in options("openai").items() if name in ("model", "api_key")}
    body: dict[str, Any] = {**where, "api_base": f"{os.environ['AGENT_URL']}/v1", "input": "Hello?", "store": False}
    reply = litellm.responses(**body)
    assert reply.output_text == "Hello." and reply.usage.input_tokens > 10
    events = list(litellm.responses(**body, stream=True))
    assert events[-1].type == "response.completed" and events[-1].response.output_text == "Hello."


def test_messages_are_passed_through() -> None:
    body: dict[str, Any] = {**options("anthropic"), "messages": QUESTION}
    reply = asyncio.run(litellm.anthropic.messages.acreate(**body))
    assert reply["content"][0]["text"] == "Hello." and reply["stop_reason"] == "end_turn"


def test_errors_are_its_own(light: dict[str, Any]) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**light, "model": light["model"].replace("scripted", "other")}, messages=QUESTION)
