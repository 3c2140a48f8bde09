"""What all tests share."""

from __future__ import annotations

import random
import secrets

import pytest

pytest.register_assert_rewrite("contract_kit", "contract_verbs", "contract_llm", "scheduler_bench")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "contract(row): a row of the executor contract, which the test is about")


@pytest.fixture(autouse=True)
def unseeded_requests_draw_the_same_each_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds that admission chooses depend on the test alone: what passes once meets no rare end token later."""
    monkeypatch.setattr(secrets, "randbits", random.Random(request.node.nodeid).getrandbits)
