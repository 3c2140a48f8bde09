"""One server over the fake engine for all tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serve_kit import Served, serving


@pytest.fixture(scope="session")
def shared() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture
def server(shared: Served) -> Served:
    shared.requests.clear()
    return shared
