"""Numbers and flags from callers are refused by name at every door of the contract."""

from __future__ import annotations

import numpy as np
import pytest

from contract_kit import INFO, FakeContractExecutor, FakeLM, Options, make_fake
from ferrum import DataType, DecodeInput, PrefillInput, RequestError, Span, StepBatch, UnifiedBatchItem, Want

contract = pytest.mark.contract


@pytest.fixture
def executor() -> FakeContractExecutor:
    executor = make_fake().executor
    assert isinstance(executor, FakeContractExecutor)
    executor.submit(StepBatch((Span("it", 0, (1, 2), Want.LOGITS),)))
    return executor


def refused(calls):
    for name, call in calls.items():
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.param == name


@contract("2.memory_requirements")
@pytest.mark.parametrize("wrong", [-1, 1.5, "x", None, True, [1], 10**80])
def test_numbers_of_reports_are_refused_by_name(executor, wrong):
    needs, plan = executor.memory_requirements, executor.memory_plan
    calls = {
        "batch_size": lambda: needs.calculate_total_memory(wrong, 5, 4),
        "sequence_length": lambda: needs.calculate_total_memory(1, wrong, 4),
        "num_layers": lambda: needs.calculate_total_memory(1, 5, wrong),
        "length": lambda: plan.max_sequences(wrong),
        "context": lambda: plan.fitting(wrong),
        "dim": lambda: DataType.FLOAT32.stored_bytes(wrong),
        "kv_dtype": lambda: INFO.kv_bytes_per_token(wrong),
        "new_len": lambda: executor.truncate_kv_for_cache_id("it", wrong),
    }
    if wrong != -1:  # no batch has -1 sequences, which is an answer
        calls["size"] = lambda: executor.supports_batch_size(wrong)
    refused(calls)
    assert needs.calculate_total_memory(np.int64(1), np.int32(5), 4) == needs.calculate_total_memory(1, 5, 4)


@contract("3.errors")
@pytest.mark.parametrize("wrong", [-1, 1.5, None, [[1], [2]]])
def test_tokens_and_positions_of_a_model_are_refused_by_name(wrong):
    model = FakeLM(Options())
    model.prefill("it", [1, 2])
    calls = {"start": lambda: model.decode("it", 5, wrong), "length": lambda: model.truncate_kv("it", wrong)}
    for verb in (model.prefill, model.forward_verify):
        refused(calls | {"tokens": lambda verb=verb: verb("it", wrong)})
    assert model.length("it") == 2


@contract("1.PrefillInput")
@pytest.mark.parametrize("wrong", ["no", 2, None])
def test_flags_of_inputs_are_refused_by_name(executor, wrong):
    handle = executor.handle("it")
    for name in ("return_hidden_states", "return_attention_weights"):
        refused({name: lambda name=name: PrefillInput([1], **{name: wrong})})
        refused({name: lambda name=name: DecodeInput([1], handle, **{name: wrong})})
    refused({"is_final_chunk": lambda: UnifiedBatchItem("it", [1], 2, is_final_chunk=wrong)})
