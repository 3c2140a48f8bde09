"""langchain-openai: chat, batches, streams, completions and embeddings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings


@pytest.fixture
def options(url: str) -> dict[str, Any]:
    return {"model": "tiny", "base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}


@pytest.fixture
def chat(options: dict[str, Any]) -> ChatOpenAI:
    return ChatOpenAI(**options, temperature=0, max_tokens=12)


def test_a_chat_and_its_stream(chat: ChatOpenAI) -> None:
    messages = [SystemMessage("be brief"), HumanMessage("read a file")]
    reply = chat.invoke(messages)
    assert reply.content and reply.usage_metadata["output_tokens"] == 12
    assert reply.response_metadata["finish_reason"] == "length"
    chunks = list(chat.stream(messages, stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == reply.content
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == 12

    async def later() -> str:
        return "".join([chunk.content async for chunk in chat.astream(messages)])

    assert asyncio.run(later()) == reply.content


def test_a_batch_is_answered_in_order(chat: ChatOpenAI) -> None:
    prompts = ["read a file", "import os\nclass A:\n", "read a file"]
    first, second, third = (reply.content for reply in chat.batch(prompts))
    assert first == third != second


def test_logprobs_and_stop_are_bound(chat: ChatOpenAI) -> None:
    reply = chat.bind(logprobs=True, top_logprobs=2).invoke("read a file")
    assert len(reply.response_metadata["logprobs"]["content"]) == 12
    stop = reply.content[3:5]
    assert chat.bind(stop=[stop]).invoke("read a file").content == reply.content.split(stop)[0]


def test_a_completion(options: dict[str, Any]) -> None:
    model = OpenAI(**options, temperature=0, max_tokens=12)
    text = model.invoke("import os\n")
    assert text and "".join(model.stream("import os\n")) == text


def test_embeddings(options: dict[str, Any]) -> None:
    """Without its own cutting of long texts, which needs a tokenizer that is downloaded."""
    model = OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
    first, second = model.embed_documents(["import os", "class A:"])
    assert first == model.embed_query("import os") != second and len(first) > 1
