"""The built-in model has one set of logits on every tier, thread count and way to run, and in the reference."""

from __future__ import annotations

import pytest

from native_twin import require_native
from one_arithmetic import KV, REFERENCE, hashes, native_variants

MODEL = "ferrum-tiny"


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("weights", ["bfloat16", "q8_0", "q4_k_m"])
def test_built_in_model_has_one_hash_and_the_reference_joins(weights: str, kv: str) -> None:
    require_native()
    found = hashes(MODEL, weights, kv, 16, 4, [*native_variants(), REFERENCE])
    assert len(found) == 1, found


@pytest.mark.soak
@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "q8_0", "q4_k_m"])
def test_long_run_of_the_built_in_model_has_one_hash(weights: str, kv: str) -> None:
    require_native()
    found = hashes(MODEL, weights, kv, 128, 64, [*native_variants(), REFERENCE])
    assert len(found) == 1, found
