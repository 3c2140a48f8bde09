"""The contract's verbs on a model without numerics: as an executor, behind `LlmExecutor`, and awaited."""

from __future__ import annotations

import pytest

from awaited_executor import awaited
from contract_kit import Maker, make_fake, make_llm
from contract_verbs import *  # noqa: F403 - the tests themselves

MAKERS = {"fake": make_fake, "llm": make_llm, "awaited": awaited(make_fake), "awaited llm": awaited(make_llm)}


@pytest.fixture(params=MAKERS.values(), ids=MAKERS)
def make(request: pytest.FixtureRequest) -> Maker:
    return request.param
