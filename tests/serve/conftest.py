"""One server over the fake engine for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

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
