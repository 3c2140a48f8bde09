"""llama-index: its OpenAI-compatible chat model, streamed and whole, completions, and embeddings."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

MESSAGES = [ChatMessage(role="system", content="be brief"), ChatMessage(role="user", content="read a file")]


@pytest.fixture
def options(url: str) -> dict[str, Any]:
    return {"api_base": f"{url}/v1", "api_key": "none", "max_retries": 0}


@pytest.fixture
def model(options: dict[str, Any]) -> OpenAILike:
    return OpenAILike(model="tiny", is_chat_model=True, temperature=0, max_tokens=12, context_window=1024, **options)


def test_chat_equals_its_stream(model: OpenAILike) -> None:
    text = model.chat(MESSAGES).message.content
    assert text and "".join(chunk.delta or "" for chunk in model.stream_chat(MESSAGES)) == text
    assert asyncio.run(model.achat(MESSAGES)).message.content == text


def test_completion_equals_its_stream(options: dict[str, Any]) -> None:
    model = OpenAILike(model="tiny", is_chat_model=False, temperature=0, max_tokens=12, context_window=1024, **options)
    text = model.complete("import os\n").text
    assert text and "".join(chunk.delta or "" for chunk in model.stream_complete("import os\n")) == text


def test_embeddings_of_queries_and_texts_agree(options: dict[str, Any]) -> None:
    model = OpenAILikeEmbedding(model_name="tiny", **options)
    first, second = model.get_text_embedding_batch(["import os", "class A:"])
    assert first == model.get_query_embedding("import os") != second and len(first) > 1
