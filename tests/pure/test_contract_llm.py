"""Section 3 of the contract, on a model without numerics."""

from __future__ import annotations

import pytest

from contract_kit import FakeLM, Options
from contract_llm import *  # noqa: F403 - the tests themselves
from ferrum.contract.decoder_llm import DecoderOnlyLLM


@pytest.fixture
def llm() -> DecoderOnlyLLM:
    return FakeLM(Options())
