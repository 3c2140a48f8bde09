"""Agents with tools and structured output: the OpenAI SDK, LangChain and LiteLLM, unchanged."""

from __future__ import annotations

import json
import os
from typing import Any

import litellm
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel

QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class City(BaseModel):
    """What is known of a city."""

    city: str
    degrees: int


@tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


@pytest.fixture
def agent_url() -> str:
    """A server of a scripted assistant with tools; see tests/support/agent_script.py."""
    return f"{os.environ['AGENT_URL']}/v1"


@pytest.fixture
def chain(agent_url: str) -> ChatOpenAI:
    return ChatOpenAI(model="scripted", base_url=agent_url, api_key="none", max_retries=0, temperature=0)


@pytest.fixture
def light(agent_url: str) -> dict[str, Any]:
    return {"model": "openai/scripted", "api_base": agent_url, "api_key": "none", "num_retries": 0}


def test_langchain_calls_a_tool_and_reads_its_result(chain: ChatOpenAI) -> None:
    bound = chain.bind_tools([get_weather])
    asked = bound.invoke([HumanMessage("What is the weather in Paris?")])
    [call] = asked.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    answer = bound.invoke([HumanMessage("What is the weather in Paris?"), asked, result])
    assert answer.content.endswith("sunny in Paris") and not answer.tool_calls


def test_langchain_streams_calls(chain: ChatOpenAI) -> None:
    whole = None
    for chunk in chain.bind_tools([get_weather]).stream("What is the weather in Paris, twice?"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [each["args"] for each in whole.tool_calls] == [{"city": "Paris"}] * 2


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_parses_structured_output(chain: ChatOpenAI, method: str) -> None:
    said = "a city, please" if method == "function_calling" else "a city as JSON"
    assert chain.with_structured_output(City, method=method).invoke(said) == City(city="Paris", degrees=21)


def test_litellm_calls_tools_whole_and_streamed(light: dict[str, Any]) -> None:
    reply = litellm.completion(**light, messages=QUESTION, tools=[WEATHER], tool_choice="auto")
    message = reply.choices[0].message
    [call] = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert reply.choices[0].finish_reason == "tool_calls" and message.reasoning_content
    chunks = list(litellm.completion(**light, messages=QUESTION, tools=[WEATHER], stream=True))
    folded = litellm.stream_chunk_builder(chunks, messages=QUESTION)
    assert folded.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
    history = [*QUESTION, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    assert litellm.completion(**light, messages=history, tools=[WEATHER]).choices[0].message.content.endswith("rain")


def test_litellm_parses_a_response_format(light: dict[str, Any]) -> None:
    asked = [{"role": "user", "content": "a city as JSON"}]
    reply = litellm.completion(**light, messages=asked, response_format=City)
    assert City.model_validate_json(reply.choices[0].message.content) == City(city="Paris", degrees=21)


def test_the_official_client_parses_tools_and_formats(agent_url: str) -> None:
    client = OpenAI(base_url=agent_url, api_key="none", max_retries=0)
    parsed = client.chat.completions.parse(
        model="scripted", messages=QUESTION, tools=[pydantic_function_tool(City, name="city")]
    )
    assert parsed.choices[0].message.tool_calls[0].function.parsed_arguments == City(city="Paris", degrees=21)
    asked = [{"role": "user", "content": "a city as JSON"}]
    formed = client.chat.completions.parse(model="scripted", messages=asked, response_format=City)
    assert formed.choices[0].message.parsed == City(city="Paris", degrees=21)
    with client.chat.completions.stream(model="scripted", messages=asked, response_format=City) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == City(city="Paris", degrees=21)
