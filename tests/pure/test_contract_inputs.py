"""Section 1 of the contract: inputs, outputs and handles; numbers and flags are refused by name at every door."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from contract_kit import INFO, FakeContractExecutor, FakeLM, Options, make_fake
from ferrum.contract.decoder_llm import LogitsPolicy
from ferrum.contract.model_info import DataType, Device, ModelInfo
from ferrum.core.errors import InvalidToken, RequestError
from ferrum.core.step import Span, StepBatch, Want
from ferrum.verbs.io_types import (
    DecodeInput,
    GenericKvCacheHandle,
    KvCacheHandle,
    PrefillInput,
    PrefillOutput,
    SpeculativeDecodeOutput,
    UnifiedBatch,
    UnifiedBatchItem,
)

contract = pytest.mark.contract

HANDLE = KvCacheHandle(
    cache_id="llm-cache-0",
    sequence_length=3,
    num_layers=2,
    num_kv_heads=3,
    head_dim=16,
    dtype=DataType.BFLOAT16,
    device=Device.CPU,
    block_table=(4, 7),
    generation=9,
    executor_id="here",
)


@contract("1.KvCacheHandle")
def test_a_handle_is_frozen_and_round_trips_through_json():
    assert GenericKvCacheHandle is KvCacheHandle
    assert KvCacheHandle.from_json(HANDLE.to_json()) == HANDLE
    with pytest.raises(dataclasses.FrozenInstanceError):
        HANDLE.generation = 1  # type: ignore[misc]


@contract("1.PrefillInput")
@pytest.mark.parametrize(
    "ids",
    [[1, 2, 3], (1, 2, 3), [[1, 2, 3]], np.array([1, 2, 3]), np.array([[1, 2, 3]], np.int32), [np.int64(1), 2, 3]],
)
def test_ids_may_be_lists_or_arrays_of_one_row_or_a_matrix(ids):
    given = PrefillInput(ids)
    assert given.input_ids == ((1, 2, 3),)
    assert (given.batch_size, given.sequence_length) == (1, 3)


@contract("1.PrefillInput")
def test_an_input_keeps_a_copy_of_its_ids():
    source = np.array([1, 2, 3])
    given = PrefillInput(source)
    source[0] = 9
    assert given.input_ids == ((1, 2, 3),)


@contract("5.token ids are integers")
def test_large_ids_keep_every_bit():
    first = 2**24 + 1
    assert PrefillInput(np.array([first, first + 2])).input_ids == ((first, first + 2),)
    assert UnifiedBatchItem("a", [first], 0).q_tokens == (first,)


@contract("1.PrefillInput")
@contract("5.token ids are integers")
@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([1, 2.0], "2.0 at position 1"),
        (np.array([1.0]), "1.0 at position 0"),
        ([[5, -3]], "-3 at position 1"),
        ([1, "2"], "'2' at position 1"),
        ([True], "True at position 0"),
        ([1, None], "None at position 1"),
    ],
)
def test_an_invalid_token_id_is_refused_with_its_position(ids, said):
    with pytest.raises(InvalidToken, match=said) as caught:
        PrefillInput(ids)
    assert caught.value.param == "input_ids"


@contract("1.PrefillInput")
@pytest.mark.parametrize("ids", [[], [[]], [[1], [1, 2]], [1, [2]], "12", 5, None, np.zeros((1, 0), int)])
def test_invalid_shapes_are_refused(ids):
    with pytest.raises(RequestError) as caught:
        PrefillInput(ids)
    assert caught.value.param == "input_ids"


@contract("1.PrefillInput")
def test_an_unknown_logits_value_is_refused():
    for wish in ("some", np.array(["last", "all"]), np.array("last"), ["last"], None, 1):
        with pytest.raises(RequestError) as caught:
            PrefillInput([1], logits=wish)
        assert caught.value.param == "logits"
        with pytest.raises(RequestError) as caught:
            UnifiedBatchItem("a", [1], 0, logits_policy=wish)
        assert caught.value.param == "logits_policy"
    assert PrefillInput([1], logits=LogitsPolicy.ALL).logits == "all"


@contract("1.PrefillInput")
def test_builders_return_a_changed_copy():
    first = PrefillInput([1, 2])
    built = first.with_kv_cache(HANDLE).with_attention_mask([True, True]).with_position_ids(np.array([[3, 4]]))
    assert (built.kv_cache, built.attention_mask, built.position_ids) == (HANDLE, ((1, 1),), ((3, 4),))
    assert built.input_ids == first.input_ids
    assert first == PrefillInput([1, 2])
    token = DecodeInput([5], HANDLE)
    assert token.with_position_ids([[3]]) == DecodeInput([5], HANDLE, [[3]]) and token.position_ids is None
    assert token.with_kv_cache(HANDLE) == token and (token.batch_size, token.sequence_length) == (1, 1)


@contract("1.PrefillOutput")
def test_last_token_logits_are_the_last_row():
    logits = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    np.testing.assert_array_equal(PrefillOutput(logits, HANDLE).last_token_logits(), [[8, 9, 10, 11]])


@contract("1.PrefillOutput")
@pytest.mark.parametrize("shape", [(3, 4), (1, 0, 4), (1, 1, 3, 4)])
def test_last_token_logits_need_rank_3_and_a_token(shape):
    with pytest.raises(RequestError) as caught:
        PrefillOutput(np.zeros(shape, np.float32), HANDLE).last_token_logits()
    assert caught.value.param == "logits"


@contract("1.DecodeInput")
def test_a_decode_takes_exactly_one_token():
    assert DecodeInput([5], HANDLE).input_ids == ((5,),) and DecodeInput(np.array([[5]]), HANDLE).token == 5
    for ids in ([1, 2], [[1], [2]], [], [[]]):
        with pytest.raises(RequestError) as caught:
            DecodeInput(ids, HANDLE)
        assert caught.value.param == "input_ids"
    with pytest.raises(InvalidToken):
        DecodeInput([-1], HANDLE)


@contract("1.UnifiedBatch")
@contract("1.LogitsPolicy")
def test_a_unified_batch_counts_tokens_and_sampled_items():
    items = [
        UnifiedBatchItem("a", range(5), 0, is_final_chunk=False),
        UnifiedBatchItem("b", np.array([1]), 3),
        UnifiedBatchItem("c", [1, 2], 3, logits_policy=LogitsPolicy.ALL),
        UnifiedBatchItem("d", [1], 3, logits_policy=LogitsPolicy.NONE),
    ]
    batch = UnifiedBatch(items)
    assert (batch.total_q_tokens, batch.num_sampled_items) == (9, 2)
    assert batch.items[0].q_tokens == (0, 1, 2, 3, 4) and batch.items[0].policy is LogitsPolicy.NONE
    with pytest.raises(RequestError) as caught:
        UnifiedBatchItem("e", [], 0)
    assert caught.value.param == "q_tokens"
    for policy in ("bogus", None, 1, []):
        with pytest.raises(RequestError) as caught:
            UnifiedBatchItem("e", [1], 0, logits_policy=policy)
        assert caught.value.param == "logits_policy"
    assert UnifiedBatchItem("e", [1], 0, logits_policy="all").policy is LogitsPolicy.ALL
    for none in (None, np.array("a"), ["a"]):
        with pytest.raises(RequestError) as caught:
            UnifiedBatch(none)
        assert caught.value.param == "items"


@contract("1.SpeculativeDecodeOutput")
def test_acceptance_count_is_the_number_of_accepted_tokens():
    assert SpeculativeDecodeOutput((4, 5), np.zeros((1, 3), np.float32), HANDLE).acceptance_count == 2


@contract("1.ModelInfo")
@contract("1.DataType")
def test_model_info_and_enums_round_trip():
    assert ModelInfo.from_json(INFO.to_json()) == INFO
    assert [str(dtype) for dtype in DataType] == ["float32", "float16", "bfloat16", "float8", "int8", "int4"]
    assert [dtype.bits for dtype in DataType] == [32, 16, 16, 8, 8, 4]
    assert DataType("bfloat16") is DataType.BFLOAT16 and str(Device("cuda")) == "cuda"


@contract("1.ModelInfo")
def test_devices_have_numbers():
    second = Device.CUDA(1)
    assert second is Device("cuda:1") is pickle.loads(pickle.dumps(second)) is copy.deepcopy(second)
    assert second == "cuda:1" and (second.kind, second.ordinal) == (Device.CUDA, 1)
    assert Device.CUDA(0) is Device("cuda:0") is Device.CUDA and list(Device) == ["cpu", "cuda", "metal"]
    assert ModelInfo.from_json(dataclasses.replace(INFO, device=second).to_json()).device is second
    for wrong in (lambda: Device.CUDA(-1), lambda: Device.CUDA(1000), lambda: Device.CPU(0)):
        with pytest.raises(RequestError):
            wrong()


@contract("1.ModelInfo")
@contract("5.sizes follow heads and formats")
def test_kv_bytes_count_kv_heads_and_the_format():
    assert INFO.num_heads != INFO.num_kv_heads
    assert INFO.kv_bytes_per_token(DataType.FLOAT32) == INFO.num_layers * 2 * 3 * 16 * 4
    assert INFO.kv_bytes_per_token(DataType.BFLOAT16) == INFO.num_layers * 2 * 3 * 16 * 2
    assert INFO.kv_bytes_per_token(DataType.INT8) == INFO.num_layers * 2 * 3 * (
        16 + 4
    )  # a scale for each key and value


@contract("2.serialisation")
@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("{", "ModelInfo"),
        ("[]", "ModelInfo"),
        ('{"colour": 1}', "colour"),
        ("{}", "model_id"),
        (INFO.to_json().replace('"float32"', '"float7"'), "dtype"),
        (INFO.to_json().replace("1000", '"many"'), "num_parameters"),
        (INFO.to_json().replace("1000", "true"), "num_parameters"),
    ],
)
def test_json_of_a_wrong_record_is_refused_by_field(text, param):
    with pytest.raises(RequestError) as caught:
        ModelInfo.from_json(text)
    assert caught.value.param == param


@contract("2.serialisation")
@pytest.mark.parametrize("value", [None, 5, [1], {"colour": 1}])
def test_from_json_refuses_other_types_than_text(value):
    with pytest.raises(RequestError) as caught:
        ModelInfo.from_json(value)
    assert caught.value.param == "ModelInfo"


# Numbers and flags are refused by name


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
