"""Servers over the fake engine and a scripted assistant, for all tests that leave them as they found them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from agent_kit import agent
from engine_fakes import FakeRecipe, MarkedTokenizer
from ferrum.core.config import EngineConfig, ModelConfig
from serve_kit import Served, chat_parts, serving


@pytest.fixture(scope="session")
def shared() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture(scope="session")
def unfailing() -> Iterator[Served]:
    """A server that has all that a request can ask for, and whose engine no prompt can command to fail."""
    config = EngineConfig(model=ModelConfig(model="fake"), policy="priority")
    made = chat_parts(FakeRecipe(fails=False, policy="priority"))
    with serving(replace(made, tokenizer=MarkedTokenizer(), config=config, embeds=True)) as served:
        yield served


@pytest.fixture
def server(shared: Served) -> Served:
    shared.requests.clear()
    return shared


@pytest.fixture(scope="module")
def assistant() -> Iterator[Served]:
    """A server of an assistant that speaks by a script, with Qwen3's template."""
    with agent() as served:
        yield served
