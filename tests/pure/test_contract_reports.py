"""Section 2 of the contract: an executor's reports, state machine and shutdown."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from contract_kit import INFO, FakeContractExecutor, FakeLM, Options, make_fake, traits_of
from ferrum.contract.model_info import DataType
from ferrum.contract.step_executor import LEGAL, ExecutorState, Lifecycle
from ferrum.core.errors import InvalidTransition, RequestError, StepError
from ferrum.core.memory_plan import MemoryPlan, MemoryRequirements, PoolPart
from ferrum.core.params import SamplingParams
from ferrum.core.snapshots import CacheMetricsSnapshot, LoraMetricsSnapshot, PrefixCounts, SpeculationCounts
from ferrum.core.step import Rows, Sampling, Span, SpanExtras, StepBatch, Want
from ferrum.scheduler.step_plan import fastest_batch_size
from ferrum.verbs.executor_reports import (
    AttentionType,
    ExecutorCapabilities,
    ExecutorMemoryUsage,
    ExecutorMetrics,
    ExecutorStatus,
    StepRecorder,
    capabilities,
    percentile,
)
from ferrum.verbs.io_types import DecodeInput, PrefillInput

contract = pytest.mark.contract

PROMPT = [3, 14, 15, 92, 65, 35, 89]


@pytest.fixture
def executor() -> FakeContractExecutor:
    executor = make_fake().executor
    assert isinstance(executor, FakeContractExecutor)
    return executor


@contract("2.info")
def test_info_is_the_same_object(executor):
    assert executor.info is INFO


@contract("2.capabilities")
@contract("5.sizes follow heads and formats")
@pytest.mark.parametrize(
    ("heads", "sharing"),
    [((6, 6), AttentionType.MULTI_HEAD), ((6, 1), AttentionType.MULTI_QUERY), ((6, 3), AttentionType.GROUPED_QUERY)],
)
def test_capabilities_derive_from_model_and_traits(heads, sharing):
    info = replace(INFO, num_heads=heads[0], num_kv_heads=heads[1])
    traits = traits_of(Options(max_batch_size=1, max_sequence_length=9))
    can = capabilities(info, traits)
    assert can.attention_mechanisms == {sharing, AttentionType.PAGED}
    assert (can.max_batch_size, can.max_sequence_length) == (1, 9)
    assert not can.supports_dynamic_batching and can.supports_speculative_decoding
    assert not can.supports_tensor_parallelism and not can.supports_pipeline_parallelism
    assert can.supported_dtypes == {DataType.FLOAT32} and can.supported_devices == {info.device}
    more = capabilities(info, replace(traits, windows=True, latent=True, flash=True, paged=False, max_batch_size=2))
    assert {str(kind) for kind in more.attention_mechanisms} == {sharing, "SlidingWindow", "Latent", "Flash"}
    assert more.supports_dynamic_batching
    assert ExecutorCapabilities.from_json(more.to_json()) == more


@contract("2.memory_requirements")
def test_the_memory_formula_is_the_contracts():
    needs = MemoryRequirements(
        parameter_memory=1000, activation_memory_per_token=7, kv_cache_memory_per_token=11, overhead_memory=13
    )
    assert needs.calculate_total_memory(2, 5, 3) == 1000 + 7 * 2 * 5 + 11 * 2 * 5 * 3 + 13


@contract("2.memory_requirements")
@contract("5.sizes follow heads and formats")
@pytest.mark.parametrize("size", [(1, 1), (6, 1), (3, 37), (6, 40)])
def test_the_memory_formula_bounds_the_plan(executor, size):
    batch, length = size
    needs, plan = executor.memory_requirements, executor.memory_plan
    assert needs.parameter_memory == plan.weights
    assert needs.kv_cache_memory_per_token * INFO.num_layers == INFO.kv_bytes_per_token(DataType.FLOAT32)
    (part,) = plan.pool
    held = plan.weights + plan.activations + plan.tables + batch * part.pages(length) * part.page_bytes
    assert needs.calculate_total_memory(batch, length, INFO.num_layers) >= held


@contract("2.memory_requirements")
def test_a_plan_adds_up_and_counts_fitting_sequences():
    full = PoolPart(name="full", num_pages=10, page_size=4, page_bytes=4 * 3)
    window = PoolPart(name="window", num_pages=9, page_size=4, page_bytes=4 * 5, resident_tokens=12)
    plan = MemoryPlan(weights=100, activations=20, activation_row=2, tables=3, pool=(full, window))
    assert plan.kv_pool == 10 * 4 * 3 + 9 * 4 * 5 and plan.total == 123 + plan.kv_pool
    assert plan.max_sequences(12) == 3
    assert plan.max_sequences(20) == 2  # ten pages of the full group; three of the window's nine each
    assert MemoryPlan.from_json(plan.to_json()) == plan


@contract("2.kv_capacity")
def test_kv_capacity_tokens_really_fit(executor):
    assert executor.kv_capacity() == 240
    assert make_fake(num_pages=3).executor.kv_capacity() == 12


# Status and metrics


@contract("2.status")
def test_status_counts_served_operations(executor):
    assert executor.status().state is ExecutorState.INITIALIZING and not executor.status().is_ready
    assert executor.status().last_operation is None
    handles = [output.kv_cache for output in executor.batch_prefill([PrefillInput(PROMPT), PrefillInput([9])])]
    executor.batch_decode([DecodeInput([1], handle) for handle in handles])
    status = executor.status()
    assert status.state is ExecutorState.READY and status.is_ready and status.current_batch_size == 0
    assert (status.prefill_operations, status.decode_operations) == (2, 2)
    assert status.avg_prefill_time_ms > 0 and status.avg_decode_time_ms > 0
    assert status.last_operation is not None and status.last_operation >= 0
    assert (status.backend, status.numerics_id) == ("fake", "fake-1")
    assert ExecutorStatus.from_json(status.to_json()) == status
    assert json.loads(status.to_json())["last_operation"] == status.last_operation


@contract("5.reports wait for no step")
@contract("2.status")
def test_reports_do_not_wait_for_the_running_step(executor):
    inside, go_on = threading.Event(), threading.Event()
    run = executor.lm.run

    def slow(batch):
        inside.set()
        assert go_on.wait(10)
        return run(batch)

    executor.lm.run = slow
    thread = threading.Thread(target=executor.batch_prefill, args=([PrefillInput(PROMPT), PrefillInput([9])],))
    thread.start()
    assert inside.wait(10)
    status = executor.status()
    reports = (
        *(executor.metrics, executor.capabilities, executor.cache_metrics_snapshot, executor.lora_metrics_snapshot),
        *(executor.kv_capacity, lambda: executor.info, lambda: executor.memory_requirements),
    )
    assert all(report() is not None for report in reports) and thread.is_alive()
    go_on.set()
    thread.join()
    assert (status.state, status.is_ready, status.current_batch_size) == (ExecutorState.BUSY, True, 2)


@contract("2.status")
def test_memory_usage_follows_the_pool(executor):
    plan, fixed = executor.memory_plan, 4000 + 600 + 80
    (part,) = plan.pool
    handle = executor.prefill(PrefillInput(PROMPT)).kv_cache
    usage = executor.status().memory_usage
    assert usage.allocated_bytes == plan.total and usage.used_bytes == fixed + 2 * part.page_bytes
    executor.release_cache(handle.cache_id)
    after = executor.status().memory_usage
    assert after.used_bytes == fixed and after.peak_bytes == usage.used_bytes
    assert after.utilization_percent == pytest.approx(100 * fixed / plan.total)
    assert ExecutorMemoryUsage.from_json(after.to_json()) == after


@contract("2.status")
def test_illegal_transitions_are_refused():
    for start in ExecutorState:
        for target in ExecutorState:
            life = Lifecycle()
            life.state = start
            if target in LEGAL[start]:
                life.move(target)
                assert life.state is target
            else:
                with pytest.raises(InvalidTransition):
                    life.move(target)
                assert life.state is start
    assert LEGAL[ExecutorState.SHUTDOWN] == set()
    assert ExecutorState.BUSY not in LEGAL[ExecutorState.ERROR]


@contract("2.metrics")
def test_metrics_follow_their_formulas():
    recorder = StepRecorder()
    prefill, decode = Span("a", 0, (1,) * 10), Span("b", 5, (1,))
    recorder.record([prefill], 0.5)
    for millisecond in range(1, 21):
        recorder.record([decode, replace(decode, cache_id="c")], millisecond / 1000)
    recorder.record([prefill, decode], 0.29)
    metrics = recorder.metrics(max_batch_size=4, memory_efficiency=0.25)
    assert (metrics.total_operations, metrics.prefill_operations, metrics.decode_operations) == (43, 2, 41)
    assert metrics.avg_prefill_latency == pytest.approx(395) and metrics.p95_prefill_latency == pytest.approx(500)
    assert metrics.avg_decode_latency == pytest.approx(10.5) and metrics.p95_decode_latency == pytest.approx(19)
    assert metrics.throughput_tps == pytest.approx((10 + 40 + 11) / (0.5 + 0.21 + 0.29))
    assert metrics.batch_utilization == pytest.approx(43 / 22 / 4)
    assert metrics.memory_efficiency == 0.25
    assert ExecutorMetrics.from_json(metrics.to_json()) == metrics


@contract("2.metrics")
def test_the_window_forgets_but_the_counters_do_not():
    recorder = StepRecorder()
    recorder.record([Span("a", 5, (1,))], 1000.0)
    for _ in range(1024):
        recorder.record([Span("a", 5, (1,))], 0.001)
    metrics = recorder.metrics(max_batch_size=1, memory_efficiency=0.0)
    assert metrics.decode_operations == 1025 and metrics.avg_decode_latency == pytest.approx(1.0)


@contract("2.metrics")
def test_metrics_are_zero_before_the_first_step(executor):
    metrics = executor.metrics()
    assert all(value == 0 for value in metrics.to_dict().values())
    assert percentile([], 95) == 0.0
    assert [percentile(list(range(1, 101)), p) for p in (1, 50, 95, 100)] == [1, 50, 95, 100]


@contract("2.metrics")
def test_a_span_is_a_prefill_or_a_decode(executor):
    executor.submit(StepBatch((Span("a", 0, (1,), Want.LOGITS),)))
    executor.submit(StepBatch((Span("a", 1, (1, 2, 3), Want.LOGITS, Rows.ALL, extras=SpanExtras(drafts=2)),)))
    executor.submit(StepBatch((Span("a", 4, (1, 2), Want.NONE), Span("b", 7, (1,)))))
    metrics = executor.metrics()
    assert (metrics.prefill_operations, metrics.decode_operations) == (2, 1)  # the last span failed
    assert metrics.memory_efficiency == pytest.approx(6 / 8)


@contract("2.metrics")
def test_memory_efficiency_counts_stored_tokens_once():
    executor = make_fake(window=6, page_size=4).executor
    handle = executor.prefill(PrefillInput([1] * 90)).kv_cache
    freed = handle.block_table.count(-1)
    held = 4 * (len(handle.block_table) - freed)
    assert freed > 0 and executor.metrics().memory_efficiency == pytest.approx((90 - 4 * freed) / held)
    executor.fork(handle)
    assert executor.metrics().memory_efficiency == pytest.approx((90 - 4 * freed) / held)
    executor.reset()
    assert executor.metrics().memory_efficiency == 0


@contract("2.cache_metrics_snapshot")
def test_cache_counters_follow_pages_and_adapter_counters_are_empty(executor, monkeypatch):
    handle = executor.prefill(PrefillInput(PROMPT)).kv_cache
    executor.fork(handle)
    snapshot = executor.cache_metrics_snapshot()
    assert snapshot == CacheMetricsSnapshot(total_pages=60, used_pages=2, shared_pages=2, sequences=2, stored_tokens=14)
    assert (snapshot.evicted_pages, snapshot.prefix_query_tokens, snapshot.prefix_hit_tokens) == (0, 0, 0)
    assert CacheMetricsSnapshot.from_json(snapshot.to_json()) == snapshot
    monkeypatch.setattr(type(executor.pages), "prefix_counts", lambda _: PrefixCounts(1, 2, 3, 4, 5, 6, 7))
    told = executor.cache_metrics_snapshot()
    assert (told.cached_pages, told.evicted_pages, told.prefix_query_tokens, told.prefix_hit_tokens) == (1, 2, 3, 4)
    assert (told.restored_pages, told.external_query_tokens, told.external_hit_tokens) == (5, 6, 7)
    adapters = executor.lora_metrics_snapshot()
    assert adapters == LoraMetricsSnapshot() and LoraMetricsSnapshot.from_json(adapters.to_json()) == adapters


@contract("2.cache_metrics_snapshot")
def test_drafts_are_counted_in_spans_that_sample(executor):
    sampling = Sampling(SamplingParams(temperature=0.0), seed=0, prompt_length=2, history=[1, 2])
    (result,) = executor.submit(StepBatch((Span("a", 0, (1, 2), sampling=sampling),))).result().results
    (right,) = result.tokens
    executor.submit(StepBatch((Span("a", 2, (right, 5), Want.LOGITS, Rows.ALL, extras=SpanExtras(drafts=1)),)))
    assert executor.cache_metrics_snapshot().speculation == SpeculationCounts()
    for name, guess in (("b", right), ("c", right - 1)):
        span = Span(name, 0, (1, 2, guess), rows=Rows.ALL, sampling=sampling, extras=SpanExtras(drafts=1))
        executor.submit(StepBatch((span,)))
    assert executor.cache_metrics_snapshot().speculation == SpeculationCounts(2, 2, 1, (1,))


# Batch sizes


@contract("2.optimal_batch_size")
@pytest.mark.parametrize(
    ("seconds", "limit", "best"),
    [
        (lambda n: 1.0, 64, 64),  # larger batches are free: the maximum
        (lambda n: 1.0, 100, 64),
        (lambda n: float(n), 64, 1),  # batching gains nothing: one
        (lambda n: max(8.0, n), 64, 8),  # a knee in the curve
        (lambda n: 0.0, 1, 1),
    ],
)
def test_the_best_batch_is_at_the_knee(seconds, limit, best):
    assert fastest_batch_size(seconds, limit) == best


@contract("2.optimal_batch_size")
def test_batch_sizes_are_measured_once_and_bounded_by_the_pool():
    kit = make_fake(num_pages=3, max_batch_size=6)
    assert [size for size in range(-1, 9) if kit.executor.supports_batch_size(size)] == [1, 2, 3]
    for other in (None, "2", 2.0, True, [2]):
        with pytest.raises(RequestError) as caught:
            kit.executor.supports_batch_size(other)
        assert caught.value.param == "size"
    best = kit.executor.optimal_batch_size()
    passes = kit.passes()
    assert best in (1, 2) and passes > 0
    assert kit.executor.optimal_batch_size() == best and kit.passes() == passes
    assert kit.executor.metrics().total_operations == 0
    assert kit.executor.cache_metrics_snapshot().sequences == 0


# Warm-up, shutdown and errors


@contract("2.warmup")
def test_warmup_happens_once(executor):
    executor.warmup()
    assert executor.status().is_ready
    executor.prefill(PrefillInput(PROMPT))
    executor.warmup()
    assert executor.warmed == 1


@contract("2.warmup")
def test_shutdown_is_final_and_idempotent(executor):
    with executor as same:
        assert same is executor
        handle = executor.prefill(PrefillInput(PROMPT)).kv_cache
    executor.shutdown()
    assert executor.closed == 1 and executor.status().state is ExecutorState.SHUTDOWN
    assert executor.cache_metrics_snapshot().sequences == 0
    assert not executor.status().is_ready
    for call in (executor.warmup, lambda: executor.prefill(PrefillInput(PROMPT))):
        with pytest.raises(InvalidTransition):
            call()
    executor.release_cache(handle.cache_id)


@contract("2.warmup")
def test_shutdown_waits_for_the_running_step(executor):
    inside, go_on = threading.Event(), threading.Event()
    run = executor.lm.run
    order = []

    def slow(batch):
        inside.set()
        assert go_on.wait(10)
        order.append("step")
        return run(batch)

    executor.lm.run = slow
    executor._close = lambda: order.append("close")
    step = threading.Thread(target=executor.prefill, args=(PrefillInput(PROMPT),))
    step.start()
    assert inside.wait(10)
    end = threading.Thread(target=executor.shutdown)
    end.start()
    go_on.set()
    step.join()
    end.join()
    assert order == ["step", "close"]


@contract("2.errors")
@contract("5.nothing half-written is used")
def test_a_failed_step_stops_the_executor_until_reset(executor):
    handle = executor.prefill(PrefillInput(PROMPT)).kv_cache
    executor.lm.explode = RuntimeError("out of order")
    with pytest.raises(RuntimeError):
        executor.decode(DecodeInput([1], handle))
    executor.lm.explode = None
    assert executor.status().state is ExecutorState.ERROR and not executor.status().is_ready
    with pytest.raises(InvalidTransition):
        executor.decode(DecodeInput([1], handle))
    executor.reset()
    assert executor.prefill(PrefillInput(PROMPT)).kv_cache.sequence_length == 7


@contract("2.errors")
def test_a_refused_step_does_not_stop_the_executor(executor):
    executor.lm.explode = StepError("not this one")
    with pytest.raises(StepError):
        executor.prefill(PrefillInput(PROMPT))
    executor.lm.explode = None
    assert executor.prefill(PrefillInput(PROMPT)).kv_cache.sequence_length == 7


@contract("2.warmup")
def test_a_failed_warmup_raises_and_sets_the_error_state():
    class Broken(FakeContractExecutor):
        def _warm(self) -> None:
            raise MemoryError

    executor = Broken(FakeLM(options := Options()), options)
    with pytest.raises(MemoryError):
        executor.warmup()
    assert executor.status().state is ExecutorState.ERROR
    executor.shutdown()
