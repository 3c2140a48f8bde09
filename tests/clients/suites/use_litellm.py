"""litellm: its OpenAI-compatible provider, sync, async, streamed, and its errors."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
import pytest

USER = [{"role": "user", "content": "read a file"}]


@pytest.fixture
def options(url: str) -> dict[str, Any]:
    return {"api_base": f"{url}/v1", "api_key": "none", "max_tokens": 12, "temperature": 0, "num_retries": 0}


def test_a_chat_whole_streamed_and_async(options: dict[str, Any]) -> None:
    body = {"model": "openai/tiny", "messages": USER, **options}
    whole = litellm.completion(**body)
    text = whole.choices[0].message.content
    assert text and whole.usage.completion_tokens == 12 and whole.choices[0].finish_reason == "length"
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**body, stream=True)]
    assert "".join(pieces) == text
    # A slow reader gets several tokens in one chunk.
    assert len(list(litellm.completion(**{**body, "max_tokens": 300}, stream=True))) > 5
    later = asyncio.run(litellm.acompletion(**body))
    assert later.choices[0].message.content == text
    scored = litellm.completion(**body, logprobs=True, top_logprobs=2)
    assert len(scored.choices[0].logprobs.content) == 12


def test_a_completion(options: dict[str, Any]) -> None:
    reply = litellm.text_completion(model="text-completion-openai/tiny", prompt="import os\n", **options)
    assert reply.choices[0].text and reply.usage.completion_tokens == 12


def test_embeddings(options: dict[str, Any]) -> None:
    where = {name: options[name] for name in ("api_base", "api_key")}
    reply = litellm.embedding(model="openai/tiny", input=["one", "two"], encoding_format="float", **where)
    assert [each["index"] for each in reply.data] == [0, 1] and len(reply.data[0]["embedding"]) > 1


def test_errors_are_its_own(options: dict[str, Any], keyed_url: str) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/other", messages=USER, **options)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(model="openai/tiny", messages=USER, **{**options, "max_tokens": 100_000})
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(model="openai/tiny", messages=[{"role": "user", "content": "word " * 5000}], **options)
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(model="openai/tiny", messages=USER, **{**options, "api_base": f"{keyed_url}/v1"})
