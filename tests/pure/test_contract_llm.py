"""Section 3 of the contract, on a model without numerics."""

from __future__ import annotations

import pytest

from contract_kit import FakeLM, FourMethods, Options
from contract_llm import *  # noqa: F403 - the tests themselves
from ferrum.contract.decoder_llm import DecoderOnlyLLM
from ferrum.verbs.adapted_llm import AdaptedLLM


@pytest.fixture(params=["whole", "four methods"])
def llm(request: pytest.FixtureRequest) -> DecoderOnlyLLM:
    return FakeLM(Options()) if request.param == "whole" else AdaptedLLM(FourMethods(Options()))
