"""The contract's verbs on a model without numerics: as an executor, behind `LlmExecutor`, and awaited."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from awaited_executor import awaited
from contract_kit import Maker, make_fake, make_llm
from contract_verbs import *  # noqa: F403 - the tests themselves
from contract_verbs.pages import *  # noqa: F403 - and those of pages

MAKERS = {"fake": make_fake, "llm": make_llm}


@pytest.fixture(params=["fake", "llm", "awaited fake", "awaited llm"])
def make(request: pytest.FixtureRequest) -> Iterator[Maker]:
    way, _, name = request.param.rpartition(" ")
    if name == "llm" and request.function.__module__ == "contract_verbs.pages":
        pytest.skip("a model by hand has no pages")
    with awaited(MAKERS[name]) if way else nullcontext(MAKERS[name]) as made:
        yield made
