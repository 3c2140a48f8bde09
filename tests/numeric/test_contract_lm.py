"""Section 3 of the contract on `DecoderLM`, the one implementation of all families."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_contract_local import poisoned

from contract_llm import *  # noqa: F403 - the tests themselves
from ferrum.contract.decoder_llm import DecoderOnlyLLM
from ferrum.verbs.load_executor import load_executor
from tiny import find


@pytest.fixture(params=["qwen3", "llama3"])
def llm(request: pytest.FixtureRequest) -> Iterator[DecoderOnlyLLM]:
    options = {"max_sequence_length": 64, "page_size": 4, "kv_capacity": 512}
    with load_executor(poisoned(find(request.param)), **options) as executor:
        yield executor.lm
