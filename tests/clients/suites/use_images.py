"""SDKs send an image unchanged: the same prompt, found in the prefix cache, and the answer to a plain request."""

from __future__ import annotations

import json
import os
import urllib.request
from base64 import b64encode
from typing import Any

import pytest
from anthropic import Anthropic
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from ollama import Client
from openai import OpenAI

SAID = "Which?"
TOKENS = 16
GREEDY = {"temperature": 0}
"""In the body: the SDK's methods have no such argument."""

PAGE = 64


@pytest.fixture
def data(picture: bytes) -> str:
    return b64encode(picture).decode()


@pytest.fixture
def expected(seeing_url: str, data: str) -> tuple[str, int]:
    """Return the answer to a request without any SDK, and the tokens of its prompt."""
    shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    content = [shown, {"type": "text", "text": SAID}]
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": TOKENS}
    request = urllib.request.Request(
        f"{seeing_url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        found = json.load(reply)
    assert found["usage"]["prompt_tokens"] > 2 * PAGE, "the tokens of the image"
    return found["choices"][0]["message"]["content"], found["usage"]["prompt_tokens"]


def block(data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def test_anthropic(seeing_url: str, data: str, expected: tuple[str, int]) -> None:
    client = Anthropic(base_url=seeing_url, api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": [block(data), {"type": "text", "text": SAID}]}]
    reply = client.messages.create(model="seer", max_tokens=TOKENS, messages=messages, extra_body=GREEDY)
    usage = reply.usage
    tokens = usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    assert (reply.content[0].text, tokens) == expected
    assert usage.cache_read_input_tokens >= PAGE, "equal pixels have equal pages"
    assert client.messages.count_tokens(model="seer", messages=messages).input_tokens == expected[1]
    with client.messages.stream(model="seer", max_tokens=TOKENS, messages=messages, extra_body=GREEDY) as stream:
        assert stream.get_final_text() == expected[0]


def test_anthropic_tool_results(seeing_url: str, data: str) -> None:
    client = Anthropic(base_url=seeing_url, api_key="none", max_retries=0)
    use: Any = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    asked: list[Any] = [{"role": "user", "content": "Look"}, {"role": "assistant", "content": [use]}]

    def tokens(*blocks: Any) -> int:
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [*blocks, {"type": "text", "text": "it"}]}
        messages = [*asked, {"role": "user", "content": [result]}]
        reply = client.messages.create(model="seer", max_tokens=TOKENS, messages=messages, extra_body=GREEDY)
        usage = reply.usage
        return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens

    assert tokens(block(data)) > tokens() + 2 * PAGE


def test_ollama(seeing_url: str, picture: bytes, data: str, expected: tuple[str, int]) -> None:
    client, options = Client(host=seeing_url), {"temperature": 0, "num_predict": TOKENS}
    for image in (picture, data, os.environ["IMAGE"]):
        reply = client.chat("seer", [{"role": "user", "content": SAID, "images": [image]}], options=options)
        assert (reply.message.content, reply.prompt_eval_count) == expected
    made = client.generate("seer", SAID, images=[picture], options=options)
    assert (made.response, made.prompt_eval_count) == expected
    assert "vision" in client.show("seer").capabilities


def test_openai_responses(seeing_url: str, data: str, expected: tuple[str, int]) -> None:
    client = OpenAI(base_url=f"{seeing_url}/v1", api_key="none", max_retries=0)
    shown = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{data}"}
    content: Any = [shown, {"type": "input_text", "text": SAID}]
    asked: Any = [{"role": "user", "content": content}]
    reply = client.responses.create(model="seer", input=asked, temperature=0, max_output_tokens=TOKENS)
    assert reply.usage is not None and (reply.output_text, reply.usage.input_tokens) == expected
    assert reply.usage.input_tokens_details.cached_tokens >= PAGE


@pytest.mark.parametrize("kind", ["openai", "anthropic", "ollama"])
def test_langchain(seeing_url: str, data: str, expected: tuple[str, int], kind: str) -> None:
    """In its standard form, which each integration turns into that of its API, and in OpenAI's."""
    common: dict[str, Any] = {"model": "seer", "temperature": 0}
    chat: Any = {
        "openai": lambda: ChatOpenAI(
            **common, base_url=f"{seeing_url}/v1", api_key="none", max_tokens=TOKENS, max_retries=0
        ),
        "anthropic": lambda: ChatAnthropic(
            **common, base_url=seeing_url, api_key="none", max_tokens=TOKENS, max_retries=0
        ),
        "ollama": lambda: ChatOllama(**common, base_url=seeing_url, num_predict=TOKENS),
    }[kind]()
    standard = {"type": "image", "base64": data, "mime_type": "image/png"}
    linked = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    for shown in (standard, linked):
        reply = chat.invoke([HumanMessage(content=[shown, {"type": "text", "text": SAID}])])
        found = reply.text, reply.usage_metadata["input_tokens"]
        if kind == "ollama":  # which begins each text with a line end
            assert found[0] and found[1] == expected[1] + 1
        else:
            assert found == expected
