"""Section 3 of the contract: hand-written models as executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from contract_kit import INFO, FakeLM, Options, make_llm
from ferrum.contract.decoder_llm import UnifiedItem
from ferrum.core.errors import NonFiniteLogits, RequestError, StepError, Unsupported
from ferrum.core.params import SamplingParams
from ferrum.core.step import Sampling, Span, SpanResult, StepBatch, Want
from ferrum.verbs.adapted_llm import AdaptedLLM
from ferrum.verbs.executor_reports import AttentionType
from ferrum.verbs.io_types import PrefillInput
from ferrum.verbs.llm_executor import LlmExecutor

contract = pytest.mark.contract

PROMPT = [3, 14, 15, 92, 65, 35, 89]


class Broken(FakeLM):
    """A model whose logits become NaN when a test says so."""

    broken = False

    def unified_forward(self, items: Sequence[UnifiedItem]) -> list[np.ndarray | None]:
        outputs = super().unified_forward(items)
        return [each * np.nan if self.broken and each is not None else each for each in outputs]


@contract("2.prefill")
@contract("3.LlmExecutor")
def test_new_sequences_have_the_given_prefix():
    executor = LlmExecutor(FakeLM(Options()), INFO, max_batch_size=6, cache_prefix="mine")
    assert executor.status().is_ready
    assert [executor.prefill(PrefillInput(PROMPT)).kv_cache.cache_id for _ in range(2)] == ["mine-0", "mine-1"]


@contract("3.LlmExecutor")
def test_a_hand_written_model_has_estimated_reports():
    executor = make_llm().executor
    executor.prefill(PrefillInput(PROMPT))
    assert executor.kv_capacity() == 240
    assert AttentionType.PAGED not in executor.capabilities().attention_mechanisms
    usage = executor.status().memory_usage
    assert usage.allocated_bytes == executor.memory_plan.total
    assert usage.used_bytes == executor.memory_plan.weights + 7 * 2 * 2 * 3 * 16 * 4
    assert executor.cache_metrics_snapshot().stored_tokens == 7


@contract("3.LlmExecutor")
@contract("2.status")
def test_a_report_counts_while_a_step_begins_sequences(monkeypatch):
    executor = LlmExecutor(FakeLM(Options()), INFO, max_batch_size=6)
    executor.prefill(PrefillInput(PROMPT))

    def begin_another(_: AdaptedLLM, cache_id: str) -> int:
        """Begin a sequence, as another thread's step may at any moment."""
        executor.pages.advance(f"{cache_id}-more")
        return 7

    monkeypatch.setattr(AdaptedLLM, "length", begin_another)
    assert executor.status().memory_usage.used_bytes > executor.memory_plan.weights


@contract("3.LlmExecutor")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", object()),
        ("info", None),
        ("info", replace(INFO, vocab_size=7)),
        ("info", replace(INFO, head_dim=8)),
        ("max_batch_size", 0),
        ("max_batch_size", "2"),
        ("max_batch_size", 1 << 62),
        ("cache_prefix", 5),
    ],
)
def test_arguments_are_refused_by_name(name, value):
    with pytest.raises(RequestError) as caught:
        LlmExecutor(**{"model": FakeLM(Options()), "info": INFO, name: value})
    assert caught.value.param == name


@contract("3.LlmExecutor")
def test_an_empty_sequence_outlives_a_step_whose_logits_are_nan():
    lm = Broken(Options())
    executor = LlmExecutor(lm, INFO, max_batch_size=6)
    empty = executor.truncate_kv(executor.prefill(PrefillInput(PROMPT)).kv_cache, 0)
    lm.broken = True
    step = StepBatch((Span(empty.cache_id, 0, tuple(PROMPT), Want.LOGITS),))
    assert isinstance(executor.submit(step).result().results[0], NonFiniteLogits)
    assert executor.handle(empty.cache_id).sequence_length == 0 and empty.cache_id in lm.pages
    lm.broken = False
    assert isinstance(executor.submit(step).result().results[0], SpanResult)


@contract("3.LlmExecutor")
@contract("2.submit")
def test_an_unsupported_span_fails_alone():
    executor = make_llm().executor
    ids = [executor.prefill(PrefillInput(PROMPT)).kv_cache.cache_id for _ in range(3)]
    good, bad = (Sampling(params, 0, 7, [*PROMPT, 4]) for params in (SamplingParams(), None))
    spans = [Span(each, 7, (4,), sampling=bad if each == ids[1] else good) for each in ids]
    first, failed, last = executor.submit(StepBatch(tuple(spans))).result().results
    assert isinstance(first, SpanResult) and isinstance(failed, StepError) and first.tokens == last.tokens
    assert [executor.pages.length(each) for each in ids] == [8, 7, 8]


@contract("3.LlmExecutor")
@contract("2.errors")
@pytest.mark.parametrize("count", [1, 2])
def test_a_model_without_truncation_rolls_back_by_computing_again(count):
    lm = Broken(Options(window=6))
    executor = LlmExecutor(lm, INFO, max_batch_size=6)
    handles = [executor.prefill(PrefillInput(PROMPT)).kv_cache for _ in range(2)]
    chunks = [PrefillInput(PROMPT * 6, kv_cache=each) for each in handles]
    lm.broken = True
    with pytest.raises(NonFiniteLogits):
        executor.batch_prefill(chunks[:count])
    lm.broken = False
    assert [executor.handle(each.cache_id) for each in handles] == handles
    assert executor.prefill(chunks[0]).kv_cache.sequence_length == 49
    lm.pages.check()
    assert sorted(lm.pages.ids()) == sorted(executor.pages.ids())


@contract("3.LlmExecutor")
@contract("3.set_lora_adapter")
def test_a_model_chooses_the_adapters_of_its_sequences():
    class Adapted(FakeLM):
        def set_lora_adapter(self, cache_id: str, name: str | None) -> None:
            chosen.append((cache_id, name))

    chosen = list[tuple[str, str | None]]()
    executor = LlmExecutor(Adapted(Options()), INFO, max_batch_size=6)
    handle = executor.set_lora_adapter("x", "mine")
    assert executor.prefill(PrefillInput(PROMPT, kv_cache=handle)).kv_cache.sequence_length == len(PROMPT)
    executor.set_lora_adapter("x", "other")
    assert chosen == [("x", "mine"), ("x", "other")]
    with pytest.raises(Unsupported, match="only takes names"):
        executor.set_lora_adapter("x", None)
    plain = make_llm().executor
    with pytest.raises(Unsupported, match="mine"):
        plain.set_lora_adapter("y", "mine")
    assert "y" not in plain.pages
