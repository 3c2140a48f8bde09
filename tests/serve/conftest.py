"""One server over the fake engine for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine_fakes import FakeRecipe
from serve_kit import Served, chat_parts, serving


@pytest.fixture(scope="session")
def shared() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture(scope="session")
def unfailing() -> Iterator[Served]:
    """A server whose engine no prompt can command to fail."""
    with serving(chat_parts(FakeRecipe(fails=False))) as served:
        yield served


@pytest.fixture
def server(shared: Served) -> Served:
    shared.requests.clear()
    return shared
