"""Mixed steps, the lease, and threads."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from contract_kit import OTHER, POISON, PROMPT, same
from contract_verbs.kit import begin, contract, truth, usable, verbs_on
from ferrum.contract.decoder_llm import LogitsPolicy
from ferrum.core.errors import ExecutorInUse, RequestError, StepError, UnknownSequence, Unsupported
from ferrum.core.params import SamplingParams
from ferrum.core.policy_config import PolicyConfig
from ferrum.core.step import CARRY, AdapterUse, Inputs, Rows, Score, Span, SpanExtras, StepBatch, Want
from ferrum.verbs.executor_registry import BatchModelExecutor, SpeculativeExecutor
from ferrum.verbs.io_types import DecodeInput, UnifiedBatch, UnifiedBatchItem
from span_kit import span_of


@contract("1.UnifiedBatch")
@contract("1.LogitsPolicy")
@contract("2.unified_decode")
def test_a_mixture_takes_one_pass(kit, executor):
    one, two, three = begin(executor), begin(executor, OTHER), begin(executor, [9])
    before = kit.passes()
    batch = UnifiedBatch(
        (
            UnifiedBatchItem("fresh", [8], 0),
            UnifiedBatchItem(one, [5], 7),
            UnifiedBatchItem(two.cache_id, PROMPT, 4, is_final_chunk=False),
            UnifiedBatchItem(three, [1, 2, 3], 1, logits_policy=LogitsPolicy.ALL),
        )
    )
    assert batch.total_q_tokens == 12 and batch.num_sampled_items == 3
    decodes = executor.status().decode_operations
    logits = executor.unified_decode(batch)
    assert kit.passes() == before + 1
    decodes = executor.status().decode_operations - decodes
    same(logits[0], truth(executor, [8]))
    same(logits[1], truth(executor, [*PROMPT, 5])[-1:])
    assert logits[2] is None
    same(logits[3], truth(executor, [9, 1, 2, 3])[1:])
    usable(executor, executor.handle(two.cache_id), OTHER + PROMPT)
    assert decodes == 1, "a new prompt of one token is a prefill"


@contract("2.unified_decode")
@pytest.mark.parametrize(
    ("item", "param"),
    [
        (UnifiedBatchItem("fresh", [1], 3), "pos_offset"),
        (UnifiedBatchItem("llm-cache-99", [1], 0), "seq_id"),
        (UnifiedBatchItem("fresh", [10**6], 0), "q_tokens"),
    ],
)
def test_invalid_items_are_refused_by_field(executor, item, param):
    handle = begin(executor)
    with pytest.raises(RequestError) as caught:
        executor.unified_decode(UnifiedBatch((UnifiedBatchItem(handle, [5], 7), item)))
    assert caught.value.param == param
    usable(executor, handle, PROMPT)


@contract("2.unified_decode")
def test_an_unknown_adapter_is_refused(executor):
    with pytest.raises((Unsupported, RequestError)):
        executor.unified_decode(UnifiedBatch((UnifiedBatchItem("fresh", [1], 0, adapter="mine"),)))
    assert executor.cache_metrics_snapshot().sequences == 0


@contract("2.batch_prefill")
@contract("2.batch_decode")
@contract("2.forward_verify")
@contract("2.unified_decode")
def test_an_empty_list_runs_no_step(kit, executor):
    assert executor.batch_prefill([]) == executor.batch_decode([]) == executor.forward_verify([]) == []
    assert executor.unified_decode(UnifiedBatch(())) == []
    assert executor.submit(StepBatch(())).result().results == ()
    assert kit.passes() == 0


@contract("2.submit")
def test_submit_gives_one_result_or_error_per_span(executor):
    spans = (
        Span("a", 0, tuple(PROMPT), Want.LOGITS, Rows.ALL),
        Span("b", 0, (1, POISON), Want.LOGITS),
        Span("c", 3, (1,), Want.NONE),
    )
    pending = executor.submit(StepBatch(spans))
    first, second, third = pending.result().results
    same(first.logits, truth(executor, PROMPT))
    assert first.length == len(PROMPT)
    assert isinstance(second, StepError) and isinstance(third, UnknownSequence)
    assert pending.result() is pending.result()


@contract("2.submit")
def test_an_invalid_start_fails_its_own_span(executor):
    handle = begin(executor)
    spans = [Span(f"new-{number}", start, (1, 2), Want.LOGITS) for number, start in enumerate((0.0, False, None, "0"))]
    more = Span(handle.cache_id, 7.0, (1,), Want.LOGITS)
    for outcome in executor.submit(StepBatch((*spans, more))).result().results:
        assert isinstance(outcome, RequestError) and outcome.param == "start"
    assert executor.status().is_ready
    usable(executor, handle, PROMPT)


@contract("2.submit")
@pytest.mark.parametrize(
    ("param", "values"),
    [
        ("cache_id", (None, 5, ("a",))),
        ("tokens", (None, 5, 1.5, "12", b"12", {1: 2}, {CARRY}, np.array([1, 2]), iter((1, 2)), (np.array([1, 2]),))),
        ("drafts", (None, "1", 1.0, (1,))),
        ("sampling", (5, SamplingParams())),
        ("extras", (5, {"drafts": 1}, SpanExtras())),
        ("masks", (5, "1", (1,))),
        ("inputs", (5, "1", (1,), (Inputs((0,), [1.0], b""),))),
        ("adapters", (5, "1", (1,), (AdapterUse(5),), (AdapterUse("a", "1"),), (AdapterUse("a", start=-1),))),
        ("attention_weights", (1, None, "yes")),
        ("score", (5, (1, 2), Score(None, 1), Score("1", 1), Score((-1,), 1), Score((10**6,), 1), Score((1.5,), 1))),
    ],
)
def test_a_field_of_a_wrong_type_fails_its_own_span(executor, param, values):
    handle = begin(executor)
    fields = {"start": 0, "tokens": (1, 2), "want": Want.LOGITS}
    bad = [span_of({"cache_id": f"bad-{number}", **fields, param: each}) for number, each in enumerate(values)]
    good = Span("good", 0, tuple(OTHER), Want.LOGITS)
    *outcomes, result = executor.submit(StepBatch((*bad, good))).result().results
    for outcome in outcomes:
        assert isinstance(outcome, RequestError) and outcome.param == param
    same(result.logits, truth(executor, OTHER)[-1:])
    assert executor.pages.ids() == (handle.cache_id, "good")
    usable(executor, handle, PROMPT)


@contract("2.submit")
@pytest.mark.parametrize("spans", [5, None, (1,), (None,), (Span(["a"], 0, (1,)),)])
def test_other_types_than_a_step_are_refused(spans):
    with pytest.raises(RequestError) as caught:
        StepBatch(spans)
    assert caught.value.param == "spans"


@contract("2.forward")
@contract("2.optimal_batch_size")
def test_temporary_sequences_have_unused_names(executor):
    names = [f"llm-cache-{kind}-{number}" for kind in ("forward", "probe") for number in range(2)]
    executor.submit(StepBatch(tuple(Span(name, 0, tuple(PROMPT), Want.NONE) for name in names)))
    executor.forward([OTHER])
    executor.optimal_batch_size()
    for name in names:
        usable(executor, executor.handle(name), PROMPT)


@contract("2.submit")
def test_each_step_has_a_debug_record(executor, caplog):
    with caplog.at_level("DEBUG", "ferrum.executor"):
        executor.prefill(PROMPT)
        executor.submit(StepBatch((Span("a", 0, (1, 2), Want.NONE), Span("b", 7, (1,)))))
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("step: 1 of 1 spans, 7 tokens, ") and second.startswith("step: 1 of 2 spans, 2 tokens, ")


@contract("2.optimal_batch_size")
def test_a_full_pool_does_not_fix_the_best_batch_size(make, monkeypatch):
    monkeypatch.setattr("ferrum.scheduler.step_plan.POLICY", PolicyConfig(batch_gain=0.0))  # every size that runs pays
    kit = make(num_pages=6, page_size=1, max_batch_size=4)
    handle = begin(kit.executor, PROMPT[:6])
    assert kit.executor.optimal_batch_size() == 0 and not kit.executor.supports_batch_size(1)
    handle = kit.executor.truncate_kv(handle, 4)
    assert kit.executor.optimal_batch_size() == 2
    assert kit.executor.handle(handle.cache_id) == handle
    kit.executor.release_cache(handle.cache_id)
    assert kit.executor.optimal_batch_size() == 4
    passes = kit.passes()
    begin(kit.executor, PROMPT[:4])
    assert kit.executor.optimal_batch_size() == 2 and kit.executor.supports_batch_size(2)
    assert not kit.executor.supports_batch_size(3) and kit.passes() == passes + 1


@contract("2.optimal_batch_size")
def test_a_failed_probe_is_no_measurement(kit, executor, monkeypatch):
    timed = executor._timed

    def poisoned(batch):
        return timed(StepBatch(tuple(replace(span, tokens=(POISON,)) for span in batch.spans)))

    monkeypatch.setattr(executor, "_timed", poisoned)
    with pytest.raises(StepError):
        executor.optimal_batch_size()
    assert executor.cache_metrics_snapshot().sequences == 0
    monkeypatch.undo()
    assert executor.optimal_batch_size() >= 1


@contract("2.lease")
def test_a_lease_closes_the_verbs_to_others(executor):
    handle = begin(executor)
    with executor.lease("an engine"):
        others = [
            *verbs_on(executor, handle),
            lambda: executor.forward([[1]]),
            lambda: executor.release_cache(handle.cache_id),
            executor.reset,
            executor.shutdown,
            lambda: executor.acquire_lease("another engine"),
        ]
        for verb in others:
            with pytest.raises(ExecutorInUse, match="an engine"):
                verb()
        (result,) = executor.submit(StepBatch((Span(handle.cache_id, 7, (5,), Want.LOGITS),))).result().results
        assert result.length == 8
    usable(executor, executor.handle(handle.cache_id), [*PROMPT, 5])


@contract("2.submit")
def test_any_thread_may_call_and_steps_do_not_mix(kit, executor):
    failures: list[Exception] = []
    expected = {seed: truth(executor, [seed, seed + 1, seed + 2])[-1:] for seed in range(4)}

    def work(seed: int) -> None:
        try:
            for _ in range(5):
                handle = begin(executor, [seed, seed + 1])
                same(executor.decode(DecodeInput([seed + 2], handle)).logits, expected[seed])
                executor.release_cache(handle.cache_id)
        except Exception as error:  # noqa: BLE001 - asserted below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert executor.cache_metrics_snapshot().sequences == 0


@contract("2.BatchModelExecutor")
def test_one_executor_satisfies_both_protocols(executor):
    assert isinstance(executor, BatchModelExecutor) and isinstance(executor, SpeculativeExecutor)
