"""The requests of `wire_forms.py`: data, and small functions that repeat it over dialects.

`$NAME$` in a path or a body stands for the id of the reply to the case of that name. Cases run in order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

CHATS: Final = "/v1/chat/completions"
TEXTS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"

WEATHER: Final[dict[str, Any]] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
UNIT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"unit": {"enum": ["celsius", "kelvin"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
LOOSE: Final = {**UNIT, "properties": {**UNIT["properties"], "tags": {"type": "array", "uniqueItems": True}}}
CITY: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
ASKED: Final = "What is the weather in Paris?"
TWICE: Final = "What is the same twice?"
PLAIN: Final = "no tool, please"
JSON: Final = "a city as JSON"


@dataclass(frozen=True, slots=True)
class Case:
    """One request. `raw` replaces the JSON of `body`."""

    name: str
    server: str
    path: str
    body: Any = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    until: str = ""
    """Repeat the request until the reply's `status` is this one."""


def get(server: str, path: str, method: str = "GET", **headers: str) -> Case:
    """Return a request without a body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    label = f"{server} {method} {path}" + "".join(f" {name}" for name in named)
    return Case(label, server, path, method=method, headers=named)


def both(server: str, name: str, path: str, body: Mapping[str, Any]) -> Iterator[Case]:
    """Yield a request for a whole reply and for a stream."""
    for streamed in (False, True):
        label = f"{server} {path} {name}{' streamed' if streamed else ''}"
        yield Case(label, server, path, {**body, "stream": streamed})


def said(text: str) -> list[dict[str, Any]]:
    """Return the messages of a conversation with one question."""
    return [{"role": "user", "content": text}]


# OpenAI's chats of the assistant


def function(name: str, schema: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a tool in the form of OpenAI's chats."""
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


CALL: Final = {
    "id": "call_00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
}
CUSTOM: Final = {"type": "custom", "custom": {"name": "shell", "description": "Runs a command."}}
PATTERN: Final = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "ls [a-z]{1,4}"}}
OFFERED: Final = {"type": "function", "function": WEATHER}
LOOK: Final = function("look", UNIT, strict=True)
FREE: Final = function("look", LOOSE)
NAMED: Final = {"type": "function", "function": {"name": "look"}}
ALLOWED: Final = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
OFF: Final = {"chat_template_kwargs": {"enable_thinking": False}}
TALK: Final = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "the weather?"}]},
    {"role": "assistant", "content": "Let me see.", "reasoning_content": "A call.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_00001", "content": "21 degrees"},
]

ASSISTANT_CHATS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"messages": said(PLAIN)},
    "usage": {"messages": said(PLAIN), "stream_options": {"include_usage": True}},
    "continuous usage": {"messages": said(PLAIN), "stream_options": {"continuous_usage_stats": True}},
    "call": {"messages": said(ASKED), "tools": [OFFERED]},
    "call with usage": {"messages": said(ASKED), "tools": [OFFERED], "stream_options": {"include_usage": True}},
    "calls": {"messages": said(TWICE), "tools": [OFFERED]},
    "one of two calls": {"messages": said(TWICE), "tools": [OFFERED], "parallel_tool_calls": False},
    "named tool": {"messages": said(PLAIN), "tools": [LOOK, OFFERED], "tool_choice": NAMED, "max_tokens": 400},
    "required tool": {"messages": said(PLAIN), "tools": [LOOK], "tool_choice": "required", "max_tokens": 400},
    "allowed tool": {"messages": said(PLAIN), "tools": [LOOK, OFFERED], "tool_choice": ALLOWED, "max_tokens": 400},
    "unenforced tool": {"messages": said(PLAIN), "tools": [FREE], "tool_choice": "required", "max_tokens": 400},
    "no tool": {"messages": said(PLAIN), "tools": [OFFERED], "tool_choice": "none"},
    "custom tool": {"messages": said(ASKED), "tools": [CUSTOM]},
    "custom tool with a pattern": {
        "messages": said(ASKED),
        "tools": [{"type": "custom", "custom": {"name": "shell", "format": PATTERN}}],
        "tool_choice": "required",
        "max_tokens": 300,
    },
    "older functions": {"messages": said(ASKED), "functions": [WEATHER], "function_call": "auto"},
    "result": {"messages": TALK, "tools": [OFFERED]},
    "choices": {"messages": said(ASKED), "tools": [OFFERED], "n": 3},
    "log-probabilities": {"messages": said(PLAIN), "logprobs": True, "top_logprobs": 2},
    "log-probabilities of a call": {"messages": said(ASKED), "tools": [OFFERED], "logprobs": True},
    "no thought": {"messages": said(PLAIN), **OFF},
    "no effort": {"messages": said(PLAIN), "reasoning_effort": "none"},
    "hidden thought": {"messages": said(PLAIN), "include_reasoning": False},
    "budget of a thought": {"messages": said(PLAIN), "thinking_token_budget": 9},
    "no budget": {"messages": said(PLAIN), "thinking_token_budget": 0},
    "object": {"messages": said(JSON), "response_format": {"type": "json_object"}},
    "schema": {
        "messages": said(JSON),
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}},
    },
    "choice of texts": {"messages": said(PLAIN), "structured_outputs": {"choice": ["yes", "no"]}},
    "expression": {"messages": said(PLAIN), "guided_regex": "[a-c]{3}"},
    "grammar": {"messages": said(PLAIN), "grammar": 'root ::= "ab" | "cd"'},
    "stop string": {"messages": said(PLAIN), "stop": ["ll"]},
    "stop string included": {"messages": said(PLAIN), "stop": "ll", "include_stop_str_in_output": True},
    "cut thought": {"messages": said(PLAIN), "max_tokens": 12},
    "cut call": {"messages": said(ASKED), "tools": [OFFERED], "max_completion_tokens": 106},
    "cut name": {"messages": said(ASKED), "tools": [OFFERED], "max_tokens": 70},
    "continued": {
        "messages": [*said(PLAIN), {"role": "assistant", "content": "Hel"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "echo": True,
    },
    "token ids": {"messages": said(PLAIN), "return_token_ids": True, **OFF},
    "prediction": {"messages": said(PLAIN), "prediction": {"type": "content", "content": "Hello."}},
    "fields without effect": {"messages": said(PLAIN), "user": "u", "store": True, "odd": 1, "metadata": {"a": "b"}},
}


def assistant_chats() -> Iterator[Case]:
    """Yield chats in OpenAI's form, and what is refused in them."""
    for name, body in ASSISTANT_CHATS.items():
        yield from both("assistant", name, CHATS, body)
    for place, fault in enumerate(
        (
            {"tools": [{"type": "function"}]},
            {"tools": [{"type": "retrieval"}]},
            {"tools": [function("a b", {})]},
            {"tools": [OFFERED, OFFERED]},
            {"tools": [function("f", {"type": "nothing"}, strict=True)], "tool_choice": "required"},
            {"tools": [function("f", LOOSE, strict=True)]},
            {"tools": [OFFERED], "tool_choice": "any"},
            {"tools": [OFFERED], "tool_choice": NAMED},
            {"tool_choice": "required"},
            {"tools": [OFFERED], "functions": [WEATHER]},
            {"tools": [{"type": "custom", "custom": {"name": "x", "format": {"type": "grammar"}}}]},
            {"response_format": {"type": "json_object"}, "guided_regex": "a"},
            {"response_format": {"type": "xml"}},
            {"response_format": {"type": "json_schema"}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": LOOSE}}},
            {"guided_regex": "("},
            {"grammar": "root ::= missing"},
            {"stream_options": {"include_usage": True}},
            {"top_logprobs": 3},
            {"logprobs": True, "top_logprobs": 21},
            {"max_tokens": 5, "max_completion_tokens": 6},
            {"max_tokens": 70_000},
            {"max_tokens": 3, "min_tokens": 4},
            {"chat_template": "{{ 1/0 }}"},
            {"chat_template": "{% if"},
            {"chat_template_kwargs": {"messages": []}},
            {"messages": []},
            {"messages": [{"role": "robot", "content": "x"}]},
            {"messages": [{"role": "user", "content": None}]},
            {"messages": [{"role": "tool", "content": "x"}]},
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}]},
            {"messages": said("x" * 70_000)},
            {"messages": said("hi"), "echo": True},
            {"lora": [{"id": 0, "scale": 1}]},
            {"prediction": {"type": "other", "content": ""}},
        )
    ):
        yield Case(f"assistant {CHATS} fault {place}", "assistant", CHATS, {"messages": said(PLAIN), **fault})


# The Responses API


def flat(name: str, schema: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a tool in the form of the Responses API."""
    return {"type": "function", "name": name, "parameters": schema, **more}


FLAT: Final = flat(name="get_weather", schema=WEATHER["parameters"], description="The weather.")
SPACE: Final = {"type": "namespace", "name": "sky", "description": "Of the sky.", "tools": [FLAT]}
ENCRYPTED: Final = "reasoning.encrypted_content"
FORMAT: Final = {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}
ITEMS: Final = [
    {"role": "developer", "content": "Be brief."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ASKED}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "A call."}]},
    {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "21 degrees"},
    {"type": "custom_tool_call", "call_id": "call_2", "name": "shell", "input": "ls"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "a.txt"}]},
]

ASSISTANT_RESPONSES: Final[dict[str, dict[str, Any]]] = {
    "plain": {"input": PLAIN},
    "instructions": {"input": said(PLAIN), "instructions": "Be brief.", "metadata": {"a": "b"}},
    "call": {"input": ASKED, "tools": [FLAT]},
    "calls": {"input": TWICE, "tools": [FLAT]},
    "one of two calls": {"input": TWICE, "tools": [FLAT], "parallel_tool_calls": False},
    "required tool": {
        "input": PLAIN,
        "tools": [flat("look", UNIT, strict=True)],
        "tool_choice": "required",
        "max_output_tokens": 400,
    },
    "unenforced tool": {
        "input": PLAIN,
        "tools": [flat("look", LOOSE, strict=False)],
        "tool_choice": {"type": "function", "name": "look"},
        "max_output_tokens": 400,
    },
    "custom tool": {"input": ASKED, "tools": [{"type": "custom", "name": "shell", "description": "Runs it."}]},
    "namespace": {"input": ASKED, "tools": [SPACE]},
    "search": {"input": ASKED, "tools": [{"type": "tool_search", "execution": "client", "description": "d"}]},
    "tools left out": {"input": PLAIN, "tools": [FLAT, {"type": "web_search"}]},
    "items": {"input": ITEMS, "tools": [FLAT]},
    "summary": {"input": PLAIN, "reasoning": {"summary": "auto"}, "include": [ENCRYPTED]},
    "no effort": {"input": PLAIN, "reasoning": {"effort": "none"}},
    "object": {"input": JSON, "text": {"format": {"type": "json_object"}}},
    "schema": {"input": JSON, "text": {"format": FORMAT}},
    "cut thought": {"input": PLAIN, "max_output_tokens": 12},
    "cut call": {"input": ASKED, "tools": [FLAT], "max_output_tokens": 106},
    "cut text": {"input": PLAIN, "max_output_tokens": 64},
    "fields without effect": {"input": PLAIN, "user": "u", "include": ["odd"], "odd": 1, "text": {"verbosity": "low"}},
    "other prompt": {"input": PLAIN, "prompt_cache_options": {"comparison_response_id": "resp_unknown"}},
}


def response(name: str, **body: Any) -> Case:
    """Return a request to the assistant's Responses API, whose reply others refer to by the name."""
    return Case(name, "assistant", RESPONSES, body)


def assistant_responses() -> Iterator[Case]:
    """Yield responses, stored ones, and what is refused in them."""
    for name, body in ASSISTANT_RESPONSES.items():
        yield from both("assistant", name, RESPONSES, {"store": False, **body})
        if "output" not in name:
            counted = {key: body[key] for key in ("input", "tools", "instructions", "reasoning") if key in body}
            yield Case(f"count {name}", "assistant", f"{RESPONSES}/input_tokens", counted)
    yield from stored_responses()
    yield from background_responses()
    for place, fault in enumerate(
        (
            {"input": None},
            {"input": []},
            {"input": [{"type": "odd"}]},
            {"input": [{"type": "function_call_output", "call_id": "x", "output": 3}]},
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            {"input": [{"type": "item_reference", "id": "msg_unknown"}]},
            {"conversation": "conv_1"},
            {"prompt": {"id": "x"}},
            {"top_logprobs": 3},
            {"include": ["message.output_text.logprobs"]},
            {"previous_response_id": "resp_unknown"},
            {"background": True, "store": False},
            {"max_output_tokens": 0},
            {"temperature": 3},
            {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            {"tools": [flat("a b", {})]},
            {"tools": [FLAT, FLAT]},
            {"tool_choice": "required"},
            {"text": {"format": {"type": "xml"}}},
            {"text": {"format": {"type": "json_schema", "name": "x"}}},
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": LOOSE}}},
            {"input": "x" * 70_000},
            {"metadata": {"a": 1}},
        )
    ):
        yield Case(f"assistant {RESPONSES} fault {place}", "assistant", RESPONSES, {"input": PLAIN, **fault})


def stored_responses() -> Iterator[Case]:
    """Yield responses that continue each other, and requests for what is stored of them."""
    yield response("first", input=ASKED, tools=[FLAT], include=[ENCRYPTED])
    yield response("second", input="And tomorrow? no tool", previous_response_id="$first$", instructions="Be long.")
    yield response("third", input=PLAIN, previous_response_id="$second$", stream=True)
    yield response(
        "compared",
        input="And then? no tool",
        previous_response_id="$second$",
        prompt_cache_options={"comparison_response_id": "$second$"},
    )
    for path in (
        "first",
        "third",
        f"first?include={ENCRYPTED}",
        "first?stream=true",
        "second/input_items",
        "third/input_items?order=asc&limit=3",
        "third/input_items?limit=0",
        "third/input_items?after=msg_unknown",
    ):
        name, mark, rest = path.partition("?")
        name, slash, page = name.partition("/")
        yield get("assistant", f"{RESPONSES}/${name}${slash}{page}{mark}{rest}")
    yield get("assistant", f"{RESPONSES}/$first$/cancel", "POST")
    yield get("assistant", f"{RESPONSES}/$first$", "DELETE")
    yield Case("deleted", "assistant", f"{RESPONSES}/$first$", method="GET")
    yield get("assistant", f"{RESPONSES}/resp_unknown")
    yield get("assistant", f"{RESPONSES}/resp_unknown", "DELETE")
    yield response("after a deletion", input=PLAIN, previous_response_id="$second$")


def background_responses() -> Iterator[Case]:
    """Yield responses that run while no client waits."""
    yield response("background", input=PLAIN, background=True)
    yield Case("background done", "assistant", f"{RESPONSES}/$background$", method="GET", until="completed")
    yield get("assistant", f"{RESPONSES}/$background$/cancel", "POST")
    yield response("background stream", input=ASKED, tools=[FLAT], background=True, stream=True)
    yield get("assistant", f"{RESPONSES}/$background stream$?stream=true")
    yield get("assistant", f"{RESPONSES}/$background stream$?stream=true&starting_after=9000")


# Anthropic's Messages

LEARNED: Final = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": WEATHER["parameters"],
}
THINK: Final = {"type": "enabled", "budget_tokens": 1024}
HISTORY: Final = [
    *said(ASKED),
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "A call.", "signature": "x"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "is_error": True,
                "content": [
                    {"type": "text", "text": "21 degrees"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                ],
            },
            {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}},
        ],
    },
]

ASSISTANT_MESSAGES: Final[dict[str, dict[str, Any]]] = {
    "plain": {"messages": said(PLAIN)},
    "system": {
        "messages": said(PLAIN),
        "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "!"}],
    },
    "thought": {"messages": said(PLAIN), "thinking": THINK},
    "omitted thought": {"messages": said(PLAIN), "thinking": {"type": "adaptive", "display": "omitted"}},
    "budget of a thought": {"messages": said(PLAIN), "thinking": {"type": "enabled", "budget_tokens": 9}},
    "call": {"messages": said(ASKED), "tools": [LEARNED], "thinking": THINK},
    "calls": {"messages": said(TWICE), "tools": [LEARNED]},
    "one of two calls": {
        "messages": said(TWICE),
        "tools": [LEARNED],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    },
    "any tool": {
        "messages": said(PLAIN),
        "tools": [{"name": "look", "input_schema": UNIT, "strict": True}],
        "tool_choice": {"type": "any"},
    },
    "named tool": {
        "messages": said(PLAIN),
        "tools": [{"name": "look", "input_schema": LOOSE}, LEARNED],
        "tool_choice": {"type": "tool", "name": "look"},
    },
    "no tool": {"messages": said(PLAIN), "tools": [LEARNED], "tool_choice": {"type": "none"}},
    "tools left out": {
        "messages": said(PLAIN),
        "tools": [LEARNED, {"type": "web_search_20250305", "name": "web_search"}],
    },
    "result": {"messages": HISTORY, "tools": [LEARNED]},
    "schema": {"messages": said(JSON), "output_config": {"format": {"type": "json_schema", "schema": CITY}}},
    "effort": {"messages": said(PLAIN), "output_config": {"effort": "low"}},
    "stop string": {"messages": said(PLAIN), "stop_sequences": ["ll"]},
    "cut text": {"messages": said(PLAIN), "max_tokens": 3},
    "cut call": {"messages": said(ASKED), "tools": [LEARNED], "max_tokens": 50},
    "cut thought": {"messages": said(PLAIN), "thinking": THINK, "max_tokens": 12},
    "begun": {"messages": [*said(PLAIN), {"role": "assistant", "content": "Hel"}]},
    "fields without effect": {"messages": said(PLAIN), "metadata": {"user_id": "u"}, "odd": 1, "service_tier": "auto"},
    "other prompt": {"messages": said(PLAIN), "diagnostics": {"previous_message_id": "msg_unknown"}},
}


def assistant_messages() -> Iterator[Case]:
    """Yield messages, counts of tokens, threads, and what is refused in them."""
    counted = ("messages", "system", "tools", "tool_choice", "thinking", "output_config")
    for name, body in ASSISTANT_MESSAGES.items():
        yield from both("assistant", name, MESSAGES, {"max_tokens": 600, **body})
        rest = {key: body[key] for key in counted if key in body}
        yield Case(f"count tokens {name}", "assistant", f"{MESSAGES}/count_tokens", rest)
    yield message("thread", messages=said(ASKED), tools=[LEARNED], system="Be brief.", thread={"type": "create"})
    follow = {"type": "continue", "previous_message_id": "$thread$"}
    yield message("thread continued", messages=said(PLAIN), thread=follow, stream=True)
    yield message(
        "thread compared", messages=said("no tool"), thread=follow, diagnostics={"previous_message_id": "$thread$"}
    )
    yield message("thread with another system", messages=said(PLAIN), thread=follow, system="Be long.")
    yield Case("count thread", "assistant", f"{MESSAGES}/count_tokens", {"messages": said("x"), "thread": follow})
    for place, fault in enumerate(
        (
            {"max_tokens": None},
            {"max_tokens": 0},
            {"temperature": 1.5},
            {"messages": []},
            {"messages": [{"role": "robot", "content": "x"}]},
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            {"messages": [{"role": "user", "content": [{"type": "odd"}]}]},
            {"messages": said("x" * 70_000)},
            {"thinking": {"type": "enabled"}},
            {"thinking": {"type": "adaptive", "budget_tokens": 9}},
            {"tools": [{"name": "x"}]},
            {"tools": [LEARNED, LEARNED]},
            {"tools": [{"name": "look", "input_schema": LOOSE, "strict": True}]},
            {"tool_choice": {"type": "any"}},
            {"tools": [LEARNED], "tool_choice": {"type": "tool"}},
            {"tools": [LEARNED], "tool_choice": {"type": "tool", "name": "other"}},
            {"output_format": {}},
            {"container": "x"},
            {"compaction": {}},
            {"stop_sequences": [""]},
            {"thread": {"type": "continue", "previous_message_id": "msg_unknown"}},
            {"output_config": {"format": {"type": "json_schema", "schema": LOOSE}}},
        )
    ):
        yield message(f"assistant {MESSAGES} fault {place}", **{"messages": said(PLAIN), **fault})


def message(name: str, **body: Any) -> Case:
    """Return a request to the assistant's Messages API, whose reply others refer to by the name."""
    return Case(name, "assistant", MESSAGES, {"max_tokens": 600, **body})


# Ollama's API

OLLAMA_CHATS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"messages": said(PLAIN)},
    "loaded": {},
    "thought": {"messages": said(PLAIN), "think": True},
    "no thought": {"messages": said(PLAIN), "think": False},
    "effort": {"messages": said(PLAIN), "think": "low"},
    "call": {"messages": said(ASKED), "tools": [OFFERED]},
    "calls": {"messages": said(TWICE), "tools": [OFFERED], "think": False},
    "result": {
        "messages": [
            *said(ASKED),
            {
                "role": "assistant",
                "content": "",
                "thinking": "A call.",
                "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}],
            },
            {"role": "tool", "tool_name": "get_weather", "content": "21 degrees"},
        ]
    },
    "object": {"messages": said(JSON), "format": "json"},
    "schema": {"messages": said(JSON), "format": CITY},
    "stop string": {"messages": said(PLAIN), "options": {"stop": ["ll"], "num_ctx": 512, "num_gpu": 1, "odd": 2}},
    "cut text": {"messages": said(PLAIN), "think": False, "options": {"num_predict": 3}},
    "cut call": {"messages": said(ASKED), "tools": [OFFERED], "think": False, "options": {"num_predict": 50}},
    "continued": {"messages": [*said(PLAIN), {"role": "assistant", "content": "Hel"}]},
}
OLLAMA_TEXTS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"prompt": PLAIN},
    "loaded": {},
    "system": {"prompt": PLAIN, "system": "Be brief.", "think": False},
    "object": {"prompt": JSON, "format": "json"},
    "cut text": {"prompt": PLAIN, "options": {"num_predict": 12}, "keep_alive": "5m"},
    "no images": {"prompt": PLAIN, "images": [], "context": None, "template": ""},
}


def assistant_ollama() -> Iterator[Case]:
    """Yield requests in Ollama's form, and what is refused in them."""
    for path, bodies in (("/api/chat", OLLAMA_CHATS), ("/api/generate", OLLAMA_TEXTS)):
        for name, body in bodies.items():
            yield from both("assistant", name, path, {"model": "scripted:latest", **body})
    yield Case("assistant /api/chat default", "assistant", "/api/chat", {"messages": said(PLAIN)})
    yield Case("show", "assistant", "/api/show", {"model": "scripted"})
    for path in ("/api/tags", "/api/ps", "/api/version"):
        yield get("assistant", path)
    for place, (path, fault) in enumerate(
        (
            ("/api/chat", {"model": "other"}),
            ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["AAAA"]}]}),
            ("/api/chat", {"format": "xml"}),
            ("/api/chat", {"format": LOOSE}),
            ("/api/chat", {"tools": [{"function": {"name": "a b"}}]}),
            ("/api/chat", {"options": {"temperature": -1}}),
            ("/api/chat", {"options": {"num_ctx": 100_000}}),
            ("/api/chat", {"logprobs": True}),
            ("/api/generate", {"suffix": "x"}),
            ("/api/generate", {"system": "x", "raw": True}),
            ("/api/generate", {"images": ["AAAA"]}),
            ("/api/generate", {"context": [1, 2]}),
            ("/api/generate", {"template": "x"}),
            ("/api/generate", {"options": {"num_predict": 70_000}}),
            ("/api/show", {"system": "x"}),
            ("/api/show", {"model": "other"}),
            ("/api/embed", {"input": "x"}),
            ("/api/pull", {"model": "x"}),
            ("/api/delete", {"model": "x"}),
            ("/api/odd", {}),
        )
    ):
        body = {**({"messages": said(PLAIN)} if path == "/api/chat" else {"prompt": PLAIN}), **fault}
        yield Case(f"assistant {path} fault {place}", "assistant", path, body)


def assistant_cases() -> Iterator[Case]:
    """Yield the requests to the assistant, which thinks and calls tools."""
    yield from assistant_chats()
    yield from assistant_responses()
    yield from assistant_messages()
    yield from assistant_ollama()
    for path in (f"{CHATS}/render", "/tokenize"):
        for name, more in (("tools", {"tools": [OFFERED]}), ("variables", OFF), ("template", {"chat_template": "x"})):
            yield Case(f"{path} {name}", "assistant", path, {"messages": said(ASKED), **more})
    yield get("assistant", "/v1/config")


def dumped(case: Case, ids: Mapping[str, str]) -> bytes | None:
    """Return the body of a request, with the ids that it refers to."""
    return (
        case.raw if case.raw is not None else None if case.body is None else filled(json.dumps(case.body), ids).encode()
    )


def filled(text: str, ids: Mapping[str, str]) -> str:
    """Return a text with ids in the place of the names of replies."""
    for name, value in ids.items():
        text = text.replace(f"${name}$", value)
    return text


def unique(cases: Sequence[Case]) -> Sequence[Case]:
    """Return the cases. Raises ValueError if two have one name."""
    names = [case.name for case in cases]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"several cases have the name {twice[0]!r}")
    return cases
