"""LangChain on the dialects of agents: its clients of Responses, Messages and Ollama, unchanged."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

QUESTION = [SystemMessage("Be short."), HumanMessage("What is the weather in Paris?")]


class City(BaseModel):
    """What is known of a city."""

    city: str
    degrees: int


@tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


def responses(**options: Any) -> BaseChatModel:
    url = f"{os.environ['AGENT_URL']}/v1"
    common: Any = {"base_url": url, "api_key": "none", "max_retries": 0, "use_responses_api": True}
    common |= {"store": False, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}
    return ChatOpenAI(model="scripted", **common, **options)


def anthropic(**options: Any) -> BaseChatModel:
    common: Any = {"base_url": os.environ["AGENT_URL"], "api_key": "none", "max_retries": 0, "max_tokens": 2000}
    return ChatAnthropic(model="scripted", thinking={"type": "adaptive"}, **common, **options)


def ollama(**options: Any) -> BaseChatModel:
    return ChatOllama(model="scripted", base_url=os.environ["AGENT_URL"], reasoning=True, **options)


@pytest.fixture(params=[responses, anthropic, ollama], ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest) -> Callable[..., BaseChatModel]:
    """A client of a scripted assistant with tools; see tests/support/agent_script.py."""
    return request.param


def test_a_tool_is_called_and_its_result_is_read(make: Callable[..., BaseChatModel]) -> None:
    bound = make().bind_tools([get_weather])
    asked = bound.invoke(QUESTION)
    [call] = asked.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    answer = bound.invoke([*QUESTION, asked, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])])
    assert answer.text.endswith("sunny in Paris") and not answer.tool_calls
    assert answer.usage_metadata["input_tokens"] > asked.usage_metadata["input_tokens"] > 20


def test_a_stream_folds_into_the_whole_reply(make: Callable[..., BaseChatModel]) -> None:
    bound, said = make().bind_tools([get_weather]), "What is the weather in Paris, twice?"
    whole = bound.invoke(said)
    folded = None
    for chunk in bound.stream(said):
        folded = chunk if folded is None else folded + chunk
    assert folded is not None
    assert [each["args"] for each in folded.tool_calls] == [{"city": "Paris"}] * 2
    assert [each["args"] for each in whole.tool_calls] == [{"city": "Paris"}] * 2
    assert folded.text == whole.text and _reasoning(folded) == _reasoning(whole) != ""
    assert folded.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] > 20


@pytest.mark.filterwarnings("ignore:.*[Tt]hinking")
def test_a_tool_can_be_chosen(make: Callable[..., BaseChatModel]) -> None:
    bound = make().bind_tools([get_weather], tool_choice="get_weather")
    assert [each["name"] for each in bound.invoke(QUESTION).tool_calls] == ["get_weather"]


def test_structured_output_is_parsed(make: Callable[..., BaseChatModel]) -> None:
    model = make().with_structured_output(City, method="json_schema")
    assert model.invoke("a city as JSON") == City(city="Paris", degrees=21)


def test_tokens_of_messages_are_counted() -> None:
    model = anthropic()
    assert isinstance(model, ChatAnthropic)
    counted = model.get_num_tokens_from_messages(QUESTION)
    assert 20 < counted < model.get_num_tokens_from_messages(QUESTION, tools=[get_weather])


def _reasoning(message: Any) -> str:
    return "".join(block.get("reasoning", "") for block in message.content_blocks if block["type"] == "reasoning")
