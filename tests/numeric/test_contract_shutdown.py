"""After `shutdown` every verb and report says what holds, and the memory is given back."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract_kit import make_llm
from ferrum import (
    DecodeInput,
    ExecutorMemoryUsage,
    ExecutorState,
    InvalidTransition,
    LogitsPolicy,
    ModelExecutor,
    PrefillInput,
    Span,
    StepBatch,
    UnifiedBatch,
    UnifiedBatchItem,
    Want,
    load_executor,
)
from native_twin import require_native
from tiny import directory_of, find

contract = pytest.mark.contract
PROMPT = [3, 14, 15, 92]


@pytest.fixture(params=["loaded", "by hand"])
def executor(request: pytest.FixtureRequest) -> Iterator[ModelExecutor]:
    by_hand = request.param == "by hand"
    made = make_llm().executor if by_hand else load_executor(directory_of(find("qwen2")), kv_capacity=512)
    yield made
    made.shutdown()


@contract("2.warmup")
def test_every_verb_raises_and_every_size_is_zero_after_shutdown(executor: ModelExecutor) -> None:
    handle = executor.prefill(PROMPT).kv_cache
    before = executor.capabilities(), executor.memory_requirements, executor.memory_plan, executor.info
    assert executor.supports_batch_size(1) and executor.kv_capacity() > 0
    executor.optimal_batch_size()
    executor.shutdown()
    decode = DecodeInput([5], handle)
    item = UnifiedBatchItem("new", PROMPT, 0, logits_policy=LogitsPolicy.ALL)
    verbs: list[Callable[[], object]] = [
        lambda: executor.prefill(PROMPT),
        lambda: executor.batch_prefill([PrefillInput(PROMPT)]),
        lambda: executor.forward(PROMPT),
        lambda: executor.decode(decode),
        lambda: executor.batch_decode([decode]),
        lambda: executor.forward_verify([decode]),
        lambda: executor.speculative_decode(decode, [1]),
        lambda: executor.unified_decode(UnifiedBatch((item,))),
        lambda: executor.truncate_kv(handle, 2),
        lambda: executor.truncate_kv_for_cache_id(handle.cache_id, 2),
        lambda: executor.fork(handle),
        lambda: executor.submit(StepBatch((Span("s", 0, (1,), Want.LOGITS),))),
        lambda: executor.acquire_lease("an engine"),
        executor.warmup,
        executor.reset,
    ]
    for verb in verbs:
        with pytest.raises(InvalidTransition, match="shut down"):
            verb()
    executor.release_cache(handle)
    executor.release_lease("an engine")
    executor.shutdown()
    assert executor.batch_prefill([]) == executor.batch_decode([]) == []
    assert not executor.supports_batch_size(1) and not executor.in_use
    assert executor.optimal_batch_size() == executor.kv_capacity() == 0
    assert (executor.capabilities(), executor.memory_requirements, executor.memory_plan, executor.info) == before


@contract("2.warmup")
def test_reports_after_shutdown_keep_counts_and_hold_no_memory(executor: ModelExecutor) -> None:
    executor.prefill(PROMPT)
    peak = executor.status().memory_usage.peak_bytes
    executor.shutdown()
    status, cache = executor.status(), executor.cache_metrics_snapshot()
    assert status.state is ExecutorState.SHUTDOWN and not status.is_ready and status.prefill_operations == 1
    assert status.memory_usage == ExecutorMemoryUsage(0, 0, peak, 0.0)
    assert executor.metrics().prefill_operations == 1 and executor.metrics().memory_efficiency == 0
    assert (cache.total_pages, cache.used_pages, cache.sequences, cache.stored_tokens) == (0, 0, 0, 0)


def mapped_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmSize"))


@contract("2.warmup")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="mapped memory is read from /proc")
@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_shutdown_frees_weights_and_pool(kernels: str) -> None:
    if kernels == "native":
        require_native()
    executor = load_executor(directory_of(find("qwen2")), kernels=kernels, kv_capacity=1 << 19)
    pool = executor.memory_plan.kv_pool
    assert pool > 128 << 20
    executor.prefill(PROMPT)
    kept = weakref.ref(executor.lm), weakref.ref(executor.lm.kernels)
    before = mapped_bytes()
    executor.shutdown()
    assert [each() for each in kept] == [None, None]
    assert before - mapped_bytes() >= 0.9 * pool
    with pytest.raises(InvalidTransition, match="freed"):
        _ = executor.lm
