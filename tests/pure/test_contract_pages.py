"""Pages that the contract's verbs share and copy, on a model without numerics."""

from __future__ import annotations

import pytest

from contract_kit import Maker, make_fake
from contract_verbs import executor, kit  # noqa: F401 - fixtures
from contract_verbs.pages import *  # noqa: F403 - the tests themselves


@pytest.fixture
def make() -> Maker:
    return make_fake
