"""What all tests share."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("contract_kit", "contract_verbs", "contract_llm", "scheduler_bench")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "contract(row): a row of the executor contract, which the test is about")
