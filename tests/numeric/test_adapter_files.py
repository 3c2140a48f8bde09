"""Adapters as PEFT writes them give PEFT's logits, or are refused by tensor or field."""

from __future__ import annotations

import pytest

from adapter_cases import DENSE, EMBEDDINGS, SPARSE
from adapter_kit import AdapterCase, adapted_twin, assert_logits_of_peft, save


@pytest.mark.parametrize("case", (*DENSE, *EMBEDDINGS, *SPARSE), ids=lambda case: case.name)
def test_logits_are_those_of_peft(case: AdapterCase, tmp_path) -> None:
    assert_logits_of_peft(save(adapted_twin(case), tmp_path), case)
