"""Adapters as PEFT writes them give PEFT's logits, or are refused by tensor or field."""

from __future__ import annotations

import pytest

from adapter_cases import DENSE, EMBEDDINGS, SPARSE
from adapter_kit import TOLERANCE, AdapterCase, adapted_logits, adapted_twin, error_of, save, text_of, twin_logits


@pytest.mark.parametrize("case", (*DENSE, *EMBEDDINGS, *SPARSE), ids=lambda case: case.name)
def test_logits_are_those_of_peft(case: AdapterCase, tmp_path) -> None:
    twin = adapted_twin(case)
    expected = twin_logits(twin, text_of(case))
    assert error_of(adapted_logits(save(twin, tmp_path), case, text_of(case)), expected) < TOLERANCE
