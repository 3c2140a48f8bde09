"""The Responses API with the official client: items, tools, structured output, streams, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from agent_script import ANSWER, THOUGHT
from responses_kit import FLAT, PATH, events_of, folded, respond
from serve_kit import Served, error_of

ASKED = "What is the weather in Paris?"
BAD: dict[str, Any] = {"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "x", "definition": ""}}
CUSTOM: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** " /[a-z]{3,5}/ " ***"'},
}
SPACE: dict[str, Any] = {
    "type": "namespace",
    "name": "mcp__weather",
    "description": "Tools about weather.",
    "tools": [FLAT],
}
SEARCH: dict[str, Any] = {
    "type": "tool_search",
    "execution": "client",
    "description": "Finds tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}


class City(BaseModel):
    city: str
    degrees: int


@pytest.fixture
def client(assistant: Served) -> openai.OpenAI:
    return assistant.openai()


def create(client: openai.OpenAI, **body: Any) -> Any:
    return client.responses.create(model="scripted", store=False, **{"input": ASKED, **body})


def test_a_text_is_answered_by_reasoning_and_a_message(client: openai.OpenAI) -> None:
    response = create(client, input="no tool", metadata={"a": "b"}, instructions="Be brief.")
    assert (response.output_text, response.status, response.metadata) == ("Hello.", "completed", {"a": "b"})
    reasoning, message = response.output
    assert reasoning.content[0].text == THOUGHT and reasoning.summary == [] and reasoning.encrypted_content is None
    assert message.status == "completed" and response.instructions == "Be brief."
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens >= len(THOUGHT.encode())
    assert (usage.input_tokens_details.cached_tokens, usage.input_tokens_details.cache_write_tokens) == (0, 0)


def test_an_agent_calls_a_function_and_gets_its_answer(client: openai.OpenAI) -> None:
    first = create(client, tools=[FLAT], include=["reasoning.encrypted_content"])
    [call] = [each for each in first.output if each.type == "function_call"]
    assert (call.name, json.loads(call.arguments), call.namespace) == ("get_weather", {"city": "Paris"}, None)
    sent = [{"role": "user", "content": ASKED}, *(each.to_dict() for each in first.output)]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    assert create(client, tools=[FLAT], input=[*sent, result]).output_text == ANSWER + "21 degrees"


def test_the_streaming_helper_builds_the_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="scripted", input=ASKED, tools=[FLAT], store=False) as stream:  # type: ignore[list-item]
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    call = response.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Paris"}
    with client.responses.stream(model="scripted", input="a city as JSON", text_format=City, store=False) as stream:
        assert stream.get_final_response().output_parsed == City(city="Paris", degrees=21)


def test_parse_returns_an_object(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model="scripted", input="a city as JSON", text_format=City, store=False)
    assert parsed.output_parsed == City(city="Paris", degrees=21)


def test_a_format_is_enforced(assistant: Served) -> None:
    unit = {
        "type": "object",
        "properties": {"unit": {"enum": ["celsius", "kelvin"]}},
        "required": ["unit"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "unit", "schema": unit}
    response = respond(assistant, input="no tool", text={"format": form}, max_output_tokens=400)
    assert json.loads(response["output"][-1]["content"][0]["text"])["unit"] in ("celsius", "kelvin")
    assert response["text"]["format"] == form
    free = respond(assistant, input="json", text={"format": {"type": "json_object"}, "verbosity": "low"})
    assert isinstance(json.loads(free["output"][-1]["content"][0]["text"]), dict)


def test_a_custom_tool_writes_its_grammar(assistant: Served) -> None:
    response = respond(assistant, tools=[CUSTOM], tool_choice={"type": "custom", "name": "apply_patch"})
    call = response["output"][-1]
    assert call["type"] == "custom_tool_call" and call["name"] == "apply_patch"
    assert call["input"].startswith("*** ") and call["input"].endswith(" ***")
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "Done"}
    sent = [{"role": "user", "content": ASKED}, *response["output"], result]
    assert respond(assistant, tools=[CUSTOM], input=sent)["output"][-1]["content"][0]["text"] == ANSWER + "Done"


def test_tools_of_a_namespace_are_called_in_it(assistant: Served) -> None:
    for choice in ("auto", "required", {"type": "function", "namespace": "mcp__weather", "name": "get_weather"}):
        response = respond(assistant, tools=[SPACE], tool_choice=choice)
        call = response["output"][-1]
        assert (call["namespace"], call["name"]) == ("mcp__weather", "get_weather")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "21"}
    again = respond(assistant, tools=[SPACE], input=[{"role": "user", "content": ASKED}, *response["output"], result])
    assert again["output"][-1]["content"][0]["text"] == ANSWER + "21"
    assert "mcp__weather__get_weather" in prompt_of(assistant)


def test_a_search_brings_tools(assistant: Served) -> None:
    response = respond(assistant, tools=[SEARCH])
    call = response["output"][-1]
    assert (call["type"], call["execution"], call["arguments"]) == ("tool_search_call", "client", {"query": "Paris"})
    found = {"type": "tool_search_output", "call_id": call["call_id"], "tools": [SPACE, FLAT], "execution": "client"}
    more = [{"role": "user", "content": ASKED}, *response["output"], found, {"role": "user", "content": ASKED}]
    assert respond(assistant, tools=[SEARCH, FLAT], input=more)["output"][-1]["namespace"] == "mcp__weather"
    echo = {"type": "tool_search_call", "arguments": {}}
    brought = {"type": "additional_tools", "role": "developer", "tools": [FLAT]}
    sent = [echo, {"type": "tool_search_output", "tools": []}, brought, {"role": "user", "content": ASKED}]
    assert respond(assistant, tools=[SEARCH], input=sent)["output"][-1]["name"] == "get_weather"


def test_built_in_tools_are_left_out_by_name(assistant: Served) -> None:
    body = {"input": "no tool", "tools": [FLAT, {"type": "web_search", "external_web_access": False}]}
    response = assistant.post(PATH, store=False, **body)
    assert response.headers["x-ferrum-ignored"] == "tools[1].web_search"
    assert response.json()["metadata"] == {"x-ferrum-ignored": "web_search"}
    error = error_of(assistant.post(PATH, **body, tool_choice={"type": "web_search"}), 400)
    assert (error["param"], error["code"]) == ("tool_choice.type", "unsupported_parameter")


def test_allowed_tools_are_the_only_ones(assistant: Served) -> None:
    look = {**FLAT, "name": "look"}
    chosen = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}
    response = respond(assistant, tools=[FLAT, look], tool_choice=chosen, max_output_tokens=400)
    assert response["output"][-1]["name"] == "get_weather"
    plain = respond(assistant, input="no tool", tools=[FLAT], tool_choice="none", reasoning={"effort": "none"})
    assert [each["type"] for each in plain["output"]] == ["message"]


def prompt_of(served: Served) -> str:
    tokenizer = served.service.model().client.tokenizer
    assert tokenizer is not None
    return tokenizer.decode(served.requests[-1].prompt, skip_special_tokens=False)


def test_instructions_and_developer_messages_are_one_system_message(assistant: Served) -> None:
    said = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "second"}]}
    late = {"role": "developer", "content": "late"}
    respond(assistant, instructions="first", input=[said, {"role": "user", "content": "no tool"}, late])
    assert "<|im_start|>system\nfirst\n\nsecond<|im_end|>" in prompt_of(assistant)
    assert prompt_of(assistant).count("late") == 1


def test_reasoning_returns_into_the_prompt(assistant: Served) -> None:
    body: dict[str, Any] = {
        "tools": [FLAT],
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"summary": "auto"},
    }
    reasoning, call = respond(assistant, **body)["output"]
    assert reasoning["summary"] == [{"type": "summary_text", "text": THOUGHT}]
    for kept in ({"encrypted_content"}, {"content"}, {"summary"}):
        item = {"type": "reasoning", "summary": [], **{name: reasoning[name] for name in kept}}
        result = {
            "type": "function_call_output",
            "call_id": call["call_id"],
            "output": [{"type": "input_text", "text": "x"}],
        }
        respond(assistant, input=[{"role": "user", "content": ASKED}, item, call, result], tools=[FLAT])
        assert THOUGHT in prompt_of(assistant)


def test_items_without_meaning_are_named(assistant: Served) -> None:
    items = [
        {"type": "compaction", "encrypted_content": "abc"},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "web_search_call", "id": "ws", "status": "completed"},
        {"type": "reasoning", "summary": [], "encrypted_content": "of another server"},
        {"type": "local_shell_call", "id": "l", "call_id": "l", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "l", "output": "a.txt"},
        {"type": "function_call", "call_id": "cut", "name": "look", "arguments": '{"path": "a'},
        {"type": "function_call_output", "call_id": "cut", "output": [{"type": "input_image", "image_url": "data:"}]},
        {"role": "user", "content": "no tool"},
    ]
    response = assistant.post(PATH, input=items)
    assert response.headers["x-ferrum-ignored"].split(", ") == [
        "input[7].output[0]",
        "input[0].compaction",
        "input[1].configuration_update",
        "input[2].web_search_call",
        "input[3].reasoning",
    ]
    assert "a.txt" in prompt_of(assistant) and '"command": ["ls"]' in prompt_of(assistant)


def test_an_empty_probe_is_served(assistant: Served) -> None:
    for body in ({"input": []}, {"input": [], "instructions": "Be brief."}, {"input": ""}):
        response = respond(assistant, **body, max_output_tokens=1)
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert all(each["status"] == "incomplete" for each in response["output"])


def test_codex_finds_the_models(assistant: Served) -> None:
    """Codex 0.171 decodes the list only if each model has these fields."""
    required = {
        *("slug", "display_name", "supported_reasoning_levels", "shell_type", "visibility", "supported_in_api"),
        *("priority", "base_instructions", "support_verbosity", "truncation_policy", "supports_parallel_tool_calls"),
        "experimental_supported_tools",
    }
    found = assistant.http.get("/v1/models").json()
    [model] = found["models"]
    assert required <= set(model) and [model["slug"]] == [each["id"] for each in found["data"]]
    assert model["context_window"] == found["data"][0]["max_model_len"]
    assert model["supported_reasoning_levels"] == []  # Qwen3's template reads no effort
    [listed] = assistant.openai().models.list().data
    assert listed.id == model["slug"]


def test_codex_is_served(assistant: Served) -> None:
    """The body of codex 0.169, shortened."""
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ASKED}]}
    body = {
        "model": "scripted",
        "instructions": "You are Codex.",
        "input": [{**item, "role": "developer"}, item, item],
        "tools": [FLAT, CUSTOM, SEARCH, {"type": "web_search"}, SPACE],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto", "context": "all_turns"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "client_metadata": {"session_id": "0199"},
        "service_tier": "auto",
        "text": {"verbosity": "low"},
    }
    events = events_of(assistant, **body)
    items = folded(events)
    assert [each["type"] for each in items] == ["reasoning", "function_call"]
    assert items == events[-1]["response"]["output"] and items[0]["encrypted_content"]
    whole = assistant.post(PATH, **body)
    names = whole.headers["x-ferrum-ignored"].split(", ")
    assert set(names) == {
        "tools[3].web_search",
        "reasoning.context",
        "prompt_cache_key",
        "client_metadata",
        "service_tier",
        "text.verbosity",
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"truncation": "maybe"}, "truncation"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"content": "x"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [BAD]}, "tools[0].format.syntax"),
        ({"tools": [SPACE, {**SPACE, "tools": [FLAT, FLAT]}]}, "tools[1].tools[0]"),
        ({"tools": [{**SPACE, "tools": 3}]}, "tools[0].tools"),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": 3}}}}, "text.format.schema"),
        ({"temperature": 9}, "temperature"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_by_name(assistant: Served, body: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        error = error_of(assistant.post(PATH, **{"input": "x", "stream": stream, **body}), 400)
        assert error["param"] == param


def test_an_input_beyond_the_context_is_a_400(assistant: Served) -> None:
    for truncation in ("auto", "disabled"):
        error = error_of(assistant.post(PATH, input="x" * 70_000, truncation=truncation, stream=True), 400)
        assert (error["param"], error["code"]) == ("input", "context_length_exceeded")


def test_ids_have_the_prefixes_that_official_clients_look_for(assistant: Served) -> None:
    made = respond(assistant, tools=[FLAT], store=True)
    assert [made["id"][:5], *(each["id"].split("_")[0] for each in made["output"])] == ["resp_", "rs", "fc"]
    assert respond(assistant, input="no tool")["output"][-1]["id"].startswith("msg_")
    listed = assistant.http.get(f"{PATH}/{made['id']}/input_items").json()
    assert listed["first_id"].startswith("msg_")
    said = {"messages": [{"role": "user", "content": "no tool"}], "max_tokens": 100}
    assert assistant.post("/v1/messages", **said).json()["id"].startswith("msg_")
    assert assistant.post("/v1/chat/completions", **said).json()["id"].startswith("chatcmpl-")
    assert assistant.post("/v1/completions", prompt="<|im_start|>user\na").json()["id"].startswith("cmpl-")
