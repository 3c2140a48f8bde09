"""The special tokens that begin messages, read off published chat templates."""

from __future__ import annotations

import re

import pytest

from ferrum.text.chat_template import ChatTemplate
from ferrum.text.turn_openers import turn_openers
from real_templates import TEMPLATES

OPENERS = {
    "Qwen3.5-4B": {"<|im_start|>"},
    "Qwen3-Coder": {"<|im_start|>"},
    "LFM2.5-8B-A1B": {"<|im_start|>"},
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {"<|im_start|>"},
    "ibm-granite-granite-4.0": {"<|start_of_role|>"},
    "meta-llama-Llama-3.2-3B-Instruct": {"<|start_header_id|>"},
    "google-gemma-2-2b-it": {"<start_of_turn>"},
    "openai-gpt-oss-120b": {"<|start|>"},
    "GLM-4.7-Flash": {"<|user|>", "<|assistant|>"},
    "moonshotai-Kimi-K2": {"<|im_user|>", "<|im_assistant|>"},
    "deepseek-ai-DeepSeek-V3.2": {"<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"},
    "mistralai-Mistral-Nemo-Instruct-2407": {"[INST]"},
}
"""By template, as its publisher documents the format."""


class Markers:
    """A tokenizer that makes each marker in angle or square brackets a special token, and others of characters."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        found = re.findall(r"<[^<>\s]+>|\[/?[A-Z_]+\]|.", text, re.DOTALL)
        self.names += sorted({*found} - {*self.names})
        return [self.names.index(each) for each in found]

    def is_special(self, token: int) -> bool:
        return len(self.names[token]) > 1


@pytest.mark.parametrize("name", OPENERS)
def test_published_templates_begin_messages_with_special_tokens(name: str) -> None:
    markers = Markers()
    assert {markers.names[each] for each in turn_openers(TEMPLATES[name], markers)} == OPENERS[name]


@pytest.mark.parametrize(
    "source",
    ["{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "{{ raise_exception('no such chat') }}"],
)
def test_messages_without_special_tokens_have_no_openers(source: str) -> None:
    assert turn_openers(ChatTemplate(source, {}), Markers()) == frozenset()
