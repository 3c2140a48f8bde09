"""A chat that continues a thought of its final message reads the reply as the rest of that thought."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import agent_script
from agent_kit import QUESTION, QWEN3
from ferrum.client.chat_prompt import chat_prompt
from ferrum.client.llm import LLM
from ferrum.client.model_client import ModelClient
from ferrum.core.params import SamplingParams
from ferrum.grammar.reply_guidance import DEFAULT_CHAT
from scripted_model import scripted_parts


@pytest.fixture(scope="module")
def client() -> Iterator[ModelClient]:
    with LLM.from_parts(scripted_parts(agent_script.reply, QWEN3, agent_script.MARKERS)) as llm:
        yield llm.client


@pytest.mark.parametrize(
    ("content", "opened"),
    [
        ("<think>\nIs it wet?", True),
        ([{"type": "text", "text": "<think>\nIs it wet?"}], True),
        ("<think>\nIs it wet?\n</think>\n\nIt", False),
        ("It rains", False),
    ],
)
def test_reply_to_an_open_thought_begins_within_it(client: ModelClient, content: Any, opened: bool) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": content}]
    prompt = chat_prompt(client, messages, SamplingParams(), DEFAULT_CHAT, continue_final_message=True)
    assert prompt.reading is not None and prompt.reading.opened is opened
    assert prompt.text.endswith(("wet?", "It", "It rains"))
