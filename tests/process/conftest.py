"""Fixtures of the command line's tests, on the fake engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine_fakes import EOS, parts
from ferrum.client.llm import LLM
from ferrum.client.model_client import Parts
from ferrum.client.request_output import Delta
from ferrum.core.params import SamplingParams
from ferrum.text.chat_template import ChatTemplate
from ferrum.text.generation_config import GenerationConfig


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Replace every model by the fake engine; return the requested models and options."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def build(model: str, **options: Any) -> Parts:
        asked.append((model, options))
        made = parts()
        template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[bot]")
        recommended = GenerationConfig(eos_token_ids=(EOS,), sampling={"temperature": 0.0})
        return Parts(host=made.host, tokenizer=made.tokenizer, generation=recommended, chat_template=template)

    monkeypatch.setattr("ferrum.client.client_base.build", build)
    return asked


@pytest.fixture
def asked_params(monkeypatch: pytest.MonkeyPatch) -> list[SamplingParams]:
    """Return the parameters of every stream; nothing is generated."""
    asked: list[SamplingParams] = []

    def stream(self: LLM, prompt: str, params: SamplingParams, **options: Any) -> Iterator[Delta]:
        asked.append(params)
        return iter(())

    monkeypatch.setattr(LLM, "stream", stream)
    return asked
