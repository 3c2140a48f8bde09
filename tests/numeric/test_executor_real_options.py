"""What a model is loaded with: the smallest and the largest of it, and what is refused, by its name."""

from __future__ import annotations

import pytest
from tiny import directory_of, find

from ferrum import load_executor
from ferrum.core.contract import PrefillInput
from ferrum.core.errors import ConfigError

DIRECTORY = directory_of(find("qwen2"))


def test_a_pool_of_less_than_a_page_is_a_page() -> None:
    with load_executor(DIRECTORY, kernels="reference", max_batch_size=1, max_sequence_length=5) as executor:
        assert executor.kv_capacity() == 64
        assert executor.prefill(PrefillInput([1, 2, 3, 4, 5])).logits.shape[-1] == 131


def test_memory_that_does_not_hold_a_page_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrum.runtime.memory.available_memory", lambda: 64 << 10)
    with pytest.raises(ConfigError, match="one page") as refusal:
        load_executor(DIRECTORY, kernels="reference")
    assert refusal.value.param == "kv_capacity"
