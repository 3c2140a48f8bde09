"""Fixtures and helpers of the verbs' tests.

`forward` of one list of tokens is the reference; every other way to the same position must give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from contract_kit import PROMPT, Kit, Maker, same
from ferrum.verbs.io_types import DecodeInput, KvCacheHandle, PrefillInput, UnifiedBatch, UnifiedBatchItem
from ferrum.verbs.model_executor import ModelExecutor

contract = pytest.mark.contract


@pytest.fixture
def kit(make: Maker) -> Iterator[Kit]:
    """Make an executor to test; after the test its state is checked."""
    made = make()
    yield made
    made.check()


@pytest.fixture
def executor(kit: Kit) -> ModelExecutor:
    return kit.executor


def truth(executor: ModelExecutor, tokens: list[int]) -> np.ndarray:
    """Return [S, V] of the tokens alone, in one span."""
    return executor.forward([tokens])[0]


def begin(executor: ModelExecutor, tokens: list[int] = PROMPT) -> KvCacheHandle:
    return executor.prefill(PrefillInput([tokens])).kv_cache


def usable(executor: ModelExecutor, handle: KvCacheHandle, tokens: list[int]) -> None:
    """Assert that the sequence is unchanged: the handle is valid, and the next token sees all tokens."""
    assert executor.handle(handle.cache_id).sequence_length == len(tokens)
    same(executor.decode(DecodeInput([7], handle)).logits, truth(executor, [*tokens, 7])[-1:])


def verbs_on(executor: ModelExecutor, handle: KvCacheHandle) -> list[Callable[[], object]]:
    """Return a call of every verb that takes a handle."""
    verbs: list[Callable[[], object]] = [
        lambda: executor.prefill(PrefillInput([[1]], kv_cache=handle)),
        lambda: executor.decode(DecodeInput([1], handle)),
        lambda: executor.batch_decode([DecodeInput([1], handle)]),
        lambda: executor.forward_verify([DecodeInput([1], handle)]),
        lambda: executor.speculative_decode(DecodeInput([1], handle), [2]),
        lambda: executor.truncate_kv(handle, 1),
        lambda: executor.fork(handle),
    ]
    if isinstance(handle, KvCacheHandle):
        verbs.append(lambda: executor.unified_decode(UnifiedBatch((UnifiedBatchItem(handle, [1], 7),))))
    return verbs
