"""Limits of loading options, and invalid ones refused by name."""

from __future__ import annotations

import pytest

from ferrum import load_executor
from ferrum.core.errors import CapacityError, ConfigError
from ferrum.kernels.reference import ReferenceKernels
from ferrum.verbs.io_types import PrefillInput
from native_twin import require_native
from tiny import directory_of, find

DIRECTORY = directory_of(find("qwen2"))


def test_a_pool_has_at_least_one_page() -> None:
    with load_executor(DIRECTORY, kernels="reference", max_batch_size=1, max_sequence_length=5) as executor:
        assert executor.kv_capacity() == 64
        assert executor.prefill(PrefillInput([1, 2, 3, 4, 5])).logits.shape[-1] == 131


def test_a_pool_smaller_than_a_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrum.runtime.memory.available_memory", lambda: 64 << 10)
    with pytest.raises(ConfigError, match="one page") as refusal:
        load_executor(DIRECTORY, kernels="reference")
    assert refusal.value.param == "kv_capacity"


@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_a_pool_size_beyond_64_bits_is_refused(kernels: str) -> None:
    if kernels == "native":
        require_native()
    with pytest.raises(CapacityError, match=r"KV pool \(kv_capacity\)"):
        load_executor(DIRECTORY, kernels=kernels, kv_capacity=1 << 60)
    with pytest.raises(ConfigError, match="at most") as refusal:
        load_executor(DIRECTORY, kernels=kernels, page_size=1 << 60)
    assert refusal.value.param == "page_size"


@pytest.mark.parametrize("size", ["1G", 1e9, float("nan"), True, 0])
def test_an_invalid_memory_pool_size_is_refused(size: object) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_executor(DIRECTORY, kernels="reference", memory_pool_size=size)  # type: ignore[arg-type]
    assert refusal.value.param == "memory_pool_size"


def test_an_invalid_model_name_is_refused() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_executor(5)  # type: ignore[arg-type]
    assert refusal.value.param == "model"


def test_kv_capacity_may_exceed_the_largest_batch() -> None:
    """Pages that no sequence uses cache prefixes."""
    options = {"kernels": "reference", "max_batch_size": 1, "max_sequence_length": 64}
    with load_executor(DIRECTORY, kv_capacity=6400, **options) as executor:
        assert executor.kv_capacity() == 6400


@pytest.mark.parametrize(
    ("method", "what"),
    [("weight", "the weights"), ("rope_table", "max_sequence_length"), ("allocate", r"iB of the KV pool")],
)
def test_lack_of_memory_is_a_capacity_error(method: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: ReferenceKernels, *_: object) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(ReferenceKernels, method, full)
    with pytest.raises(CapacityError, match=what):
        load_executor(DIRECTORY, kernels="reference")


def test_lack_of_memory_for_buffers_is_a_capacity_error() -> None:
    with pytest.raises(CapacityError, match=r"steps of 1,099,511,627,776 tokens"):
        load_executor(DIRECTORY, kernels="reference", max_rows=1 << 40, kv_capacity=1)


def test_buffer_sizes_beyond_64_bits_are_refused() -> None:
    for number in (1 << 60, 1 << 70):
        with pytest.raises(CapacityError, match=f"steps of {number:,} tokens"):
            load_executor(DIRECTORY, kernels="reference", kv_capacity=1, max_rows=number)
        with pytest.raises(ConfigError, match=f"max_batch_size: must be at most 65536, not {number}"):
            load_executor(DIRECTORY, kernels="reference", kv_capacity=1, max_batch_size=number)


@pytest.mark.parametrize("depth", [-1, 1.5, "x", None, True, 99])
def test_an_invalid_depth_of_running_ahead_is_refused(depth: object) -> None:
    with load_executor(DIRECTORY, kernels="reference", kv_capacity=64) as executor:
        with pytest.raises(ConfigError) as refusal:
            executor.run_ahead(depth)  # type: ignore[arg-type]
        assert refusal.value.param == "depth"
