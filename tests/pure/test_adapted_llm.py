"""Models written by hand behind `LlmExecutor`: what they return, what they can do, and what verbs make them compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from counted_models import CONFIG, INFO, SIZE, Able, Beginning, Counted, LastToken, Whole, logits_after
from ferrum import (
    DataType,
    DecodeInput,
    KvExhausted,
    LlmExecutor,
    LogitsPolicy,
    NonFiniteLogits,
    PrefillInput,
    RequestError,
    StepError,
    UnifiedBatch,
    UnifiedBatchItem,
    UnknownSequence,
    Unsupported,
)

contract = pytest.mark.contract


def decodes(tokens: Sequence[int], handles: Sequence[Any]) -> list[DecodeInput]:
    return [DecodeInput([token], handle) for token, handle in zip(tokens, handles, strict=True)]


@contract("3.LlmExecutor")
@contract("2.batch_decode")
@pytest.mark.parametrize("kind", [Counted, Able])
def test_batches_compute_no_token_twice(kind: type[Counted]) -> None:
    model = kind()
    executor = LlmExecutor(model, INFO)
    handles = [output.kv_cache for output in executor.batch_prefill([PrefillInput([1] * 100), PrefillInput([2] * 100)])]
    model.computed = 0
    for _ in range(10):
        handles = [output.kv_cache for output in executor.batch_decode(decodes([3, 4], handles))]
    assert model.computed == 20


@contract("3.LlmExecutor")
@contract("3.kv_capacity")
@pytest.mark.parametrize("kind", [Counted, Able, Beginning])
def test_a_cache_is_usable_to_its_last_token(kind: type[Counted]) -> None:
    drafted, chunked, decoded = (LlmExecutor(kind(100), INFO) for _ in range(3))
    handle = drafted.prefill([1] * 97).kv_cache
    output = drafted.speculative_decode(DecodeInput([2], handle), [3, 4])
    drafted.truncate_kv(output.kv_cache, 97)
    handles = [output.kv_cache for output in chunked.batch_prefill([PrefillInput([1] * 30), PrefillInput([2] * 30)])]
    chunked.batch_prefill([PrefillInput([3] * 20, kv_cache=handle) for handle in handles])
    handles = [output.kv_cache for output in decoded.batch_prefill([PrefillInput([1] * 49), PrefillInput([2] * 49)])]
    handles = [output.kv_cache for output in decoded.batch_decode(decodes([3, 4], handles))]
    assert chunked.cache_metrics_snapshot().stored_tokens == decoded.cache_metrics_snapshot().stored_tokens == 100
    with pytest.raises(KvExhausted):
        decoded.batch_decode(decodes([3, 4], handles))
    decoded.truncate_kv(handles[0], 0)
    assert decoded.decode(DecodeInput([5], handles[1])).kv_cache.sequence_length == 51


@contract("3.LlmExecutor")
@contract("2.errors")
@pytest.mark.parametrize("kind", [Counted, Able, Beginning])
def test_the_failure_of_one_sequence_moves_no_other(kind: type[Counted]) -> None:
    model = kind()
    executor = LlmExecutor(model, INFO)
    handles = [output.kv_cache for output in executor.batch_prefill([PrefillInput([1, 2]), PrefillInput([3, 4])])]
    for call in (
        lambda: executor.batch_decode(decodes([5, 9], handles)),
        lambda: executor.batch_prefill([PrefillInput([5, 9], kv_cache=handles[0]), PrefillInput([6, 7])]),
    ):
        with pytest.raises(NonFiniteLogits):
            call()
        assert [executor.handle(handle.cache_id) for handle in handles] == handles
        assert sorted(model.cache.values()) == [[1, 2], [3, 4]]


@contract("3.decode_batch")
@contract("3.forward_verify")
@contract("3.truncate_kv")
@contract("3.LlmExecutor")
def test_what_a_model_can_do_is_used() -> None:
    model = Able()
    executor = LlmExecutor(model, INFO)
    one, two = (output.kv_cache for output in executor.batch_prefill([PrefillInput([1, 2]), PrefillInput([3])]))
    model.calls.clear()
    one, two = (output.kv_cache for output in executor.batch_decode(decodes([5, 6], [one, two])))
    rows = executor.forward_verify(decodes([1, 2, 3], [one] * 3))
    executor.truncate_kv(rows[-1].kv_cache, 4)
    assert model.calls == ["decode_batch", "forward_verify", "truncate_kv"]
    np.testing.assert_array_equal(rows[1].logits[0], logits_after([1, 2, 5, 1, 2]))


@contract("3.LlmExecutor")
@pytest.mark.parametrize("error", [Unsupported("this", "of no use here"), NotImplementedError()])
def test_a_method_that_is_not_implemented_counts_as_missing(error: Exception) -> None:
    def refuse(*_: Any) -> Any:
        raise error

    model: Any = Able()
    for name in ("unified_forward", "decode_batch", "forward_verify", "truncate_kv", "fork", "reset"):
        setattr(model, name, refuse)
    executor = LlmExecutor(model, INFO)
    handles = [executor.prefill([1, 2]).kv_cache]
    handles.append(executor.fork(handles[0]))
    one, two = executor.batch_decode(decodes([3, 4], handles))
    np.testing.assert_array_equal(two.logits[0], logits_after([1, 2, 4]))
    rows = executor.forward_verify(decodes([5, 6], [one.kv_cache] * 2))
    kept = executor.truncate_kv(rows[-1].kv_cache, 1)
    np.testing.assert_array_equal(executor.decode(DecodeInput([2], kept)).logits[0], logits_after([1, 2]))
    executor.reset()
    assert not model.cache


@contract("2.prefill")
@contract("3.prefill")
def test_later_chunks_are_prefilled_by_a_model_that_can() -> None:
    model = Counted()
    executor = LlmExecutor(model, INFO)
    handle = executor.prefill([1, 2]).kv_cache
    for length in (4, 6, 8):
        output = executor.prefill(PrefillInput([3, 4], kv_cache=handle))
        handle, model.computed = output.kv_cache, model.computed if length == 4 else model.computed - 2
        np.testing.assert_array_equal(output.logits[0, 0], logits_after([1, 2, *[3, 4] * (length // 2 - 1)]))
    assert "decode" not in model.calls and model.computed == 2 + 2 + 6, "one comparison, at the first chunk"


@contract("2.prefill")
@contract("3.prefill")
@pytest.mark.parametrize("kind", [Beginning, LastToken])
def test_later_chunks_are_decoded_by_a_model_that_only_begins_sequences(kind: type[Counted]) -> None:
    model, last_only = kind(), kind is LastToken
    executor = LlmExecutor(model, INFO)
    tokens, handle = [1, 2], executor.prefill([1, 2]).kv_cache
    for chunk in ([3, 4], [5], [6, 7], [8]):
        output = executor.prefill(PrefillInput(chunk, kv_cache=handle))
        tokens, handle = tokens + chunk, output.kv_cache
        np.testing.assert_array_equal(output.logits[0, 0], logits_after(tokens[-1:] if last_only else tokens))
    assert list(model.cache.values()) == [tokens]


WRONG = {
    r"\[1, 9\], not \[1, 10\]": lambda row: row[:, :-1],
    r"\[1, 1, 10\], not \[1, 10\]": lambda row: row[None],
    r"\[2, 10\], not \[1, 10\]": lambda row: np.concatenate([row, row]),
    r"returned None, not \[1, 10\]": lambda row: None,
    "no array": lambda row: [[1.0], [2.0, 3.0]],
    "dtype <U": lambda row: row.astype(str),
    "dtype complex": lambda row: row.astype(complex),
    "dtype bool": lambda row: row > 0,
}


@contract("3.unified_forward")
@contract("3.errors")
@pytest.mark.parametrize("words", WRONG)
def test_logits_of_a_wrong_kind_are_refused_and_no_sequence_moves(words: str) -> None:
    model = Whole()
    executor = LlmExecutor(model, INFO)
    handle = executor.prefill([1, 2]).kv_cache
    model.returned = lambda rows: [WRONG[words](row) for row in rows]
    for call in (
        lambda: executor.decode(DecodeInput([3], handle)),
        lambda: executor.prefill([4, 5]),
        lambda: executor.unified_decode(
            UnifiedBatch((UnifiedBatchItem(handle, [3], 2), UnifiedBatchItem("x", [4], 0)))
        ),
    ):
        with pytest.raises(StepError, match=words):
            call()
        assert list(model.cache.values()) == [[1, 2]] and executor.handle(handle.cache_id) == handle


@contract("3.errors")
@pytest.mark.parametrize("words", WRONG)
@pytest.mark.parametrize("kind", [Counted, Able])
def test_rows_of_a_wrong_kind_are_refused_and_no_sequence_moves(kind: type[Counted], words: str) -> None:
    model = kind()
    executor = LlmExecutor(model, INFO)
    handles = [executor.prefill([1, 2]).kv_cache for _ in range(2)]
    model.shape = lambda row: WRONG[words](row[None])
    model.decode_batch = lambda steps: [model.decode(*step) for step in steps]  # type: ignore[attr-defined]
    with pytest.raises(StepError):
        executor.batch_decode(decodes([3, 4], handles))
    assert list(model.cache.values()) == [[1, 2], [1, 2]]
    assert [executor.handle(each.cache_id) for each in handles] == handles


@contract("3.errors")
@pytest.mark.parametrize("returned", [lambda rows: rows[:-1], lambda rows: [*rows, rows[0]], lambda rows: None])
def test_a_model_returns_one_output_per_item(returned: Any) -> None:
    model = Whole()
    executor = LlmExecutor(model, INFO)
    handles = [executor.prefill([1, 2]).kv_cache for _ in range(2)]
    model.returned = returned
    with pytest.raises(StepError, match="unified_forward returned"):
        executor.batch_decode(decodes([3, 4], handles))
    assert list(model.cache.values()) == [[1, 2], [1, 2]]


@contract("3.unified_forward")
@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.uint8])
@pytest.mark.parametrize("kind", [Counted, Able, Whole])
def test_logits_come_out_as_float32(kind: type[Counted], dtype: Any) -> None:
    class Typed(kind):  # type: ignore[valid-type, misc]
        def take(self, cache_id: str, tokens: Sequence[int]) -> list[np.ndarray]:
            return [np.arange(SIZE).astype(dtype) for _ in super().take(cache_id, tokens)]

    executor = LlmExecutor(Typed(), INFO)
    handle = executor.prefill([1]).kv_cache
    rows = executor.forward_verify(decodes([1, 2], [handle] * 2))
    assert {row.logits.dtype for row in rows} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(rows[1].logits[0], np.arange(SIZE))


@contract("3.unified_forward")
def test_numbers_beyond_float32_are_not_finite() -> None:
    model = Counted()
    model.shape = lambda row: row.astype(np.float64) * 1e300
    with pytest.raises(NonFiniteLogits):
        LlmExecutor(model, INFO).prefill([1])


@contract("3.kv_capacity")
@contract("2.status")
def test_without_a_capacity_bytes_grow_with_the_tokens() -> None:
    model: Any = Counted()
    model.kv_capacity = lambda: None
    with LlmExecutor(model, INFO) as executor:
        assert executor.kv_capacity() is None
        before = executor.status().memory_usage
        handle = executor.prefill([1] * 100).kv_cache
        usage = executor.status().memory_usage
        assert usage.used_bytes - before.used_bytes == 100 * INFO.kv_bytes_per_token(DataType.FLOAT32)
        assert usage.allocated_bytes >= usage.used_bytes and executor.optimal_batch_size() > 0
        executor.truncate_kv(handle, 50)
        smaller = executor.status().memory_usage
        assert (smaller.used_bytes < usage.used_bytes) and smaller.peak_bytes == usage.used_bytes
    assert executor.kv_capacity() == 0 and executor.status().memory_usage.allocated_bytes == 0


@contract("2.speculative_decode")
@contract("3.LlmExecutor")
@pytest.mark.parametrize("kind", [Counted, Able, Whole])
def test_a_threshold_works_for_any_model(kind: type[Counted]) -> None:
    executor = LlmExecutor(kind(), INFO)
    handle = executor.prefill([1, 2]).kv_cache
    output = executor.speculative_decode(DecodeInput([3], handle), [4, 5], 0.0)
    assert output.accepted_tokens == (4, 5) and output.kv_cache.sequence_length == 5
    best = int(logits_after([1, 2, 3, 4, 5, 6]).argmax())
    output = executor.speculative_decode(DecodeInput([6], output.kv_cache), [best, (best + 1) % 9], 1.0)
    assert output.accepted_tokens[:1] == (best,)


class Adapted(Counted):
    """A model whose tokens are shifted by the number in an adapter's name."""

    def __init__(self) -> None:
        super().__init__()
        self.used: dict[str, str | None] = {}

    def set_lora_adapter(self, cache_id: str, name: str | None) -> None:
        self.used[cache_id] = name

    def release(self, cache_id: str) -> None:
        super().release(cache_id)
        self.used.pop(cache_id, None)

    def take(self, cache_id: str, tokens: Sequence[int]) -> list[np.ndarray]:
        return super().take(cache_id, [(token + int(self.used.get(cache_id) or 0)) % 9 for token in tokens])


@contract("3.set_lora_adapter")
@contract("3.fork")
def test_tokens_are_computed_again_with_the_adapters_they_had() -> None:
    model = Adapted()
    executor = LlmExecutor(model, INFO)
    handle = executor.prefill([1, 2]).kv_cache
    handle = executor.set_lora_adapter(handle, "3")
    handle = executor.decode(DecodeInput([1], handle)).kv_cache
    handle = executor.set_lora_adapter(handle, "4")
    handle = executor.decode(DecodeInput([1], handle)).kv_cache
    branch = executor.fork(handle)
    kept = executor.decode(DecodeInput([1], executor.truncate_kv(handle, 3))).kv_cache
    assert model.cache[branch.cache_id] == model.cache[kept.cache_id] == [1, 2, 4, 5]


@contract("3.errors")
def test_a_sequence_that_the_model_lost_is_unknown() -> None:
    model = Counted(4)
    executor = LlmExecutor(model, INFO)
    handle = executor.prefill([1, 2]).kv_cache
    model.capacity = 0
    with pytest.raises(KvExhausted):
        executor.truncate_kv(handle, 1)
    with pytest.raises(UnknownSequence):
        executor.handle(handle.cache_id)
    assert executor.cache_metrics_snapshot().sequences == 0


@contract("3.config")
@pytest.mark.parametrize("config", [vars, {"vocab_size": 10}, None])
def test_a_configuration_of_another_kind_is_refused_by_name(config: Any) -> None:
    model: Any = Counted()
    model.config = config
    with pytest.raises(RequestError, match="must be LlmRuntimeConfig") as caught:
        LlmExecutor(model, INFO)
    assert caught.value.param == "config"


@contract("3.unified_forward")
def test_items_without_logits_may_return_some() -> None:
    executor = LlmExecutor(Whole(), INFO)
    chunk = UnifiedBatchItem("x", [1, 2], 0, is_final_chunk=False)
    last = UnifiedBatchItem("x", [3], 2, logits_policy=LogitsPolicy.ALL)
    assert executor.unified_decode(UnifiedBatch((chunk,))) == [None]
    np.testing.assert_array_equal(executor.unified_decode(UnifiedBatch((last,)))[0], logits_after([1, 2, 3])[None])


@contract("3.config")
@pytest.mark.parametrize("name", CONFIG.to_dict())
@pytest.mark.parametrize("value", [-1, 1.0, "7", None, True])
def test_sizes_of_a_configuration_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        replace(CONFIG, **{name: value})
    assert caught.value.param == name
