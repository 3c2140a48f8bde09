"""What the tests of the verbs share: fixtures, and the truth.

`forward`, of one list of tokens, is the truth that all other ways to the same position are compared with, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from contract_kit import PROMPT, Kit, Maker, same
from ferrum.contract.executor import ModelExecutor
from ferrum.contract.io_types import DecodeInput, KvCacheHandle, PrefillInput, UnifiedBatch, UnifiedBatchItem

contract = pytest.mark.contract


@pytest.fixture
def kit(make: Maker) -> Iterator[Kit]:
    """An executor to test; when the test is over, its books are checked."""
    made = make()
    yield made
    made.check()


@pytest.fixture
def executor(kit: Kit) -> ModelExecutor:
    return kit.executor


def truth(executor: ModelExecutor, tokens: list[int]) -> np.ndarray:
    """[S, V] of the tokens alone, in one span."""
    return executor.forward([tokens])[0]


def begin(executor: ModelExecutor, tokens: list[int] = PROMPT) -> KvCacheHandle:
    return executor.prefill(PrefillInput([tokens])).kv_cache


def usable(executor: ModelExecutor, handle: KvCacheHandle, tokens: list[int]) -> None:
    """The sequence is as it was when the handle was made: the handle is good, and the next token sees all of them."""
    assert executor.handle(handle.cache_id).sequence_length == len(tokens)
    same(executor.decode(DecodeInput([7], handle)).logits, truth(executor, [*tokens, 7])[-1:])


def verbs_on(executor: ModelExecutor, handle: KvCacheHandle) -> list[Callable[[], object]]:
    """Every verb that takes a handle, ready to be called; a mixture may name its sequences instead."""
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
