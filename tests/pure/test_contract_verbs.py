"""The contract's verbs on a model without numerics: as an executor, and behind `LlmExecutor`."""

from __future__ import annotations

import pytest

from contract_kit import Maker, make_fake, make_llm
from contract_verbs import *  # noqa: F403 - the tests themselves


@pytest.fixture(params=[make_fake, make_llm], ids=["fake", "llm"])
def make(request: pytest.FixtureRequest) -> Maker:
    return request.param
