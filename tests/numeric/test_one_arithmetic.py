"""The built-in model has one set of logits on every tier, thread count and way to run, and in the reference."""

from __future__ import annotations

from itertools import product

import pytest

from native_twin import require_native
from one_arithmetic import KV, REFERENCE, hashes, native_variants

MODEL = "ferrum-tiny"


WAYS = ((0, 3), (1, 2))
"""Recorded on one thread and eager on two, or the other way round: places among the four variants of each tier."""


@pytest.mark.parametrize("number", range(9))
def test_built_in_model_has_one_hash_and_the_reference_joins(number: int) -> None:
    require_native()
    weights, kv = [*product(("bfloat16", "q8_0", "q4_k_m"), KV)][number]
    variants = [each for index, each in enumerate(native_variants()) if index % 4 in WAYS[number % 2]]
    found = hashes(MODEL, weights, kv, 16, 4, [*variants, REFERENCE])
    assert len(found) == 1, found


@pytest.mark.soak
@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "q8_0", "q4_k_m"])
def test_long_run_of_the_built_in_model_has_one_hash(weights: str, kv: str) -> None:
    require_native()
    found = hashes(MODEL, weights, kv, 128, 64, [*native_variants(), REFERENCE])
    assert len(found) == 1, found
