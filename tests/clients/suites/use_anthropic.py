"""Agents with Anthropic's official SDK, unchanged: messages, streaming helper, tools, count_tokens, errors."""

from __future__ import annotations

import json
import os
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, beta_tool
from pydantic import BaseModel

QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER: Any = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
COMMON: Any = {"model": "scripted", "max_tokens": 600}


class City(BaseModel):
    """What is known of a city."""

    city: str
    degrees: int


@beta_tool
def get_weather(city: str) -> str:
    """Return the weather of a city.

    Args:
        city: its name.
    """
    return f"sunny in {city}"


@pytest.fixture
def client() -> Anthropic:
    """A client of a scripted assistant with tools; see tests/support/agent_script.py."""
    return Anthropic(base_url=os.environ["AGENT_URL"], api_key="none", max_retries=0)


def test_message_has_text_and_usage(client: Anthropic) -> None:
    message = client.messages.create(**COMMON, messages=QUESTION, system="Be short.", stop_sequences=["x"])
    assert message.content[0].text == "Hello." and message.stop_reason == "end_turn"
    assert message.usage.input_tokens > 20 and message.usage.output_tokens == 7
    assert message._request_id


@pytest.mark.parametrize("thinking", [{"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1024}])
def test_calls_and_results_make_an_answer(client: Anthropic, thinking: Any) -> None:
    options: Any = {**COMMON, "max_tokens": 2000, "tools": [WEATHER], "thinking": thinking}
    asked = client.messages.create(**options, messages=QUESTION)
    thought, call = asked.content
    assert thought.thinking and thought.signature
    assert (call.name, call.input, asked.stop_reason) == ("get_weather", {"city": "Paris"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    history = [*QUESTION, {"role": "assistant", "content": asked.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**options, messages=history).content[-1].text.endswith("sunny")


def test_streaming_helper_folds_what_is_sent_whole(client: Anthropic) -> None:
    options: Any = {**COMMON, "tools": [WEATHER], "thinking": {"type": "adaptive"}, "messages": QUESTION}
    with client.messages.stream(**options) as stream:
        kinds = [event.type for event in stream]
        folded = stream.get_final_message()
    assert {"thinking", "input_json", "content_block_stop", "message_stop"} <= set(kinds)
    whole = client.messages.create(**options)
    blocks = [block.model_dump(exclude={"id", "parsed_output", "caller"}) for block in folded.content]
    assert blocks == [block.model_dump(exclude={"id", "parsed_output", "caller"}) for block in whole.content]
    assert (folded.stop_reason, folded.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    with client.messages.stream(**COMMON, messages=QUESTION) as stream:
        assert "".join(stream.text_stream) == "Hello."


def test_tool_runner_calls_a_function(client: Anthropic) -> None:
    runner = client.beta.messages.tool_runner(**COMMON, messages=QUESTION, tools=[get_weather])
    assert runner.until_done().content[-1].text.endswith("sunny in Paris")


def test_format_is_parsed(client: Anthropic) -> None:
    asked: Any = [{"role": "user", "content": "a city as JSON"}]
    parsed = client.messages.parse(**COMMON, messages=asked, output_format=City)
    assert parsed.parsed_output == City(city="Paris", degrees=21)
    form: Any = {"format": {"type": "json_schema", "schema": City.model_json_schema()}}
    message = client.messages.create(**COMMON, messages=asked, output_config=form)
    assert json.loads(message.content[0].text) == {"city": "Paris", "degrees": 21}


def test_tokens_are_counted(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model="scripted", messages=QUESTION, tools=[WEATHER])
    usage = client.messages.create(**COMMON, messages=QUESTION, tools=[WEATHER]).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_models_are_listed(client: Anthropic) -> None:
    [model] = client.models.list()
    assert (model.id, model.type) == ("scripted", "model") and model.created_at.year > 2000
    assert client.models.retrieve("scripted") == model


def test_errors_have_their_classes(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**COMMON, "model": "other"}, messages=QUESTION)
    with pytest.raises(anthropic.BadRequestError, match="Prompt is too long") as raised:
        client.messages.create(**COMMON, messages=[{"role": "user", "content": "a" * 70_000}])
    assert raised.value.request_id
