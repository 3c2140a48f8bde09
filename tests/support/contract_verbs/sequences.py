"""Handles, truncation, forks, release and reset."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contract_kit import OTHER, PROMPT, same
from contract_verbs.kit import begin, contract, truth, usable, verbs_on
from ferrum.core.errors import InvalidHandle, RequestError, StaleHandle, UnknownSequence
from ferrum.verbs.io_types import DecodeInput, KvCacheHandle, PrefillInput, UnifiedBatch, UnifiedBatchItem


@contract("1.KvCacheHandle")
def test_a_handle_describes_the_stored_sequence(executor):
    handle = begin(executor)
    info = executor.info
    assert (handle.num_layers, handle.num_kv_heads, handle.head_dim) == (
        info.num_layers,
        info.num_kv_heads,
        info.head_dim,
    )
    assert handle.num_kv_heads != info.num_heads
    assert handle.dtype == executor.traits.kv_dtype and handle.device == info.device
    assert handle.request_cache_id == handle.cache_id
    with pytest.raises(AttributeError):
        handle.sequence_length = 3
    assert KvCacheHandle.from_json(handle.to_json()) == handle


@contract("1.KvCacheHandle")
def test_every_change_makes_older_handles_stale(executor):
    first = begin(executor)
    second = executor.decode(DecodeInput([1], first)).kv_cache
    third = executor.truncate_kv(second, 7)
    assert first.generation < second.generation < third.generation
    for old in (first, second):
        for use in verbs_on(executor, old):
            with pytest.raises(StaleHandle):
                use()
    usable(executor, third, PROMPT)


@contract("1.KvCacheHandle")
def test_a_released_sequence_stays_unknown_if_its_name_is_reused(executor):
    executor.unified_decode(UnifiedBatch((UnifiedBatchItem("mine", PROMPT, 0),)))
    handle = executor.handle("mine")
    executor.release_cache("mine")
    for use in verbs_on(executor, handle):
        with pytest.raises(UnknownSequence):
            use()
    executor.unified_decode(UnifiedBatch((UnifiedBatchItem("mine", PROMPT, 0),)))
    for use in verbs_on(executor, handle):
        with pytest.raises(StaleHandle):
            use()


@contract("1.KvCacheHandle")
def test_foreign_handles_are_refused_in_every_verb(make, executor):
    begin(executor)
    foreign = begin(make().executor)
    for handle in (foreign, "llm-cache-0", 0, object()):
        for use in verbs_on(executor, handle):
            with pytest.raises(InvalidHandle):
                use()


@contract("2.truncate_kv")
def test_truncation_equals_never_having_gone_further(executor):
    handle = executor.prefill(PrefillInput([PROMPT + OTHER])).kv_cache
    back = executor.truncate_kv(handle, 5)
    assert back.sequence_length == 5 and back.cache_id == handle.cache_id
    usable(executor, back, PROMPT[:5])
    assert executor.truncate_kv_for_cache_id(handle.cache_id, 2).sequence_length == 2
    usable(executor, executor.handle(handle.cache_id), PROMPT[:2])


@contract("2.truncate_kv")
def test_invalid_truncation_lengths_are_refused(executor):
    handle = begin(executor)
    for length in (8, -1, 1.5, 7.0, True, "3", None):
        for truncate in (
            lambda length: executor.truncate_kv(handle, length),
            lambda length: executor.truncate_kv_for_cache_id(handle.cache_id, length),
        ):
            with pytest.raises(RequestError) as caught:
                truncate(length)
            assert caught.value.param == "new_len"
    assert executor.truncate_kv(handle, 7) == handle
    with pytest.raises(UnknownSequence):
        executor.truncate_kv_for_cache_id("nobody", 0)
    usable(executor, handle, PROMPT)


@contract("2.truncate_kv")
@contract("2.serialisation")
def test_lengths_may_be_integers_of_any_type(executor):
    back = executor.truncate_kv(begin(executor), np.int64(5))
    assert KvCacheHandle.from_json(back.to_json()) == back
    assert '"stored_tokens": 5' in executor.cache_metrics_snapshot().to_json()
    usable(executor, back, PROMPT[:5])


@contract("2.fork")
@contract("2.truncate_kv")
@pytest.mark.parametrize("release_base_first", [True, False])
@pytest.mark.parametrize("length", [7, 8])
def test_base_and_clone_are_independent(executor, release_base_first, length):
    prompt = [*PROMPT, 44][:length]
    base = begin(executor, prompt)
    clone = executor.fork(base)
    assert clone.cache_id == f"{base.cache_id}-clone-0" and clone.sequence_length == length
    after = executor.batch_decode([DecodeInput([1], base), DecodeInput([2], clone)])
    same(after[0].logits, truth(executor, [*prompt, 1])[-1:])
    same(after[1].logits, truth(executor, [*prompt, 2])[-1:])
    executor.truncate_kv(after[1].kv_cache, 3)
    clone = executor.prefill(PrefillInput([[99, 98]], kv_cache=executor.handle(clone.cache_id))).kv_cache
    if release_base_first:
        executor.release_cache(base.cache_id)
        usable(executor, clone, [*prompt[:3], 99, 98])
    else:
        executor.release_cache(clone.cache_id)
        usable(executor, after[0].kv_cache, [*prompt, 1])


@contract("2.fork")
def test_clones_of_one_base_are_numbered_and_a_clone_is_a_base(executor):
    base = begin(executor)
    clones = [executor.fork(base) for _ in range(2)]
    assert [clone.cache_id for clone in clones] == [f"{base.cache_id}-clone-{number}" for number in range(2)]
    deeper = executor.fork(clones[1])
    assert deeper.cache_id.startswith(f"{clones[1].cache_id}-clone-")
    executor.release_cache(clones[1].cache_id)
    for handle in (deeper, clones[0], base):
        usable(executor, handle, PROMPT)


@contract("2.release_cache")
def test_release_is_idempotent_and_affects_no_other_sequence(executor, caplog):
    one, two = begin(executor), begin(executor, OTHER)
    with caplog.at_level("DEBUG", logger="ferrum.executor"):
        for _ in range(2):
            executor.release_cache(one.cache_id)
    executor.release_cache("nobody")
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG"]
    assert one.cache_id in caplog.text
    usable(executor, two, OTHER)


@contract("2.release_cache")
@contract("2.truncate_kv")
def test_verbs_with_a_name_refuse_a_handle(executor):
    handle = begin(executor)
    for other in (handle, None, 0, [handle.cache_id]):
        for verb in (executor.handle, lambda name: executor.truncate_kv_for_cache_id(name, 1)):
            with pytest.raises(InvalidHandle) as caught:
                verb(other)
            assert caught.value.param == "cache_id"
    for other in (None, 0, [handle.cache_id]):
        with pytest.raises(InvalidHandle) as caught:
            executor.release_cache(other)
        assert caught.value.param == "cache_id"
    usable(executor, handle, PROMPT)


@contract("2.release_cache")
def test_a_sequence_is_released_by_any_of_its_handles(executor):
    handle = begin(executor)
    newer = executor.decode(DecodeInput([1], handle)).kv_cache
    executor.release_cache(handle)
    with pytest.raises(UnknownSequence):
        executor.decode(DecodeInput([1], newer))
    executor.release_cache(newer)
    other = begin(executor)
    with pytest.raises(InvalidHandle):
        executor.release_cache(replace(other, executor_id="another"))
    usable(executor, other, PROMPT)


@contract("2.prefill")
def test_token_ids_are_a_prompt(executor):
    expected = executor.prefill(PrefillInput(PROMPT)).last_token_logits()
    for prompt in (PROMPT, tuple(PROMPT), np.array(PROMPT), [PROMPT]):
        same(executor.prefill(prompt).last_token_logits(), expected)


@contract("2.reset")
def test_reset_drops_every_sequence(executor):
    handles = [begin(executor), begin(executor, OTHER)]
    executor.reset()
    assert executor.cache_metrics_snapshot().used_pages == 0
    for handle in handles:
        with pytest.raises(UnknownSequence):
            executor.decode(DecodeInput([1], handle))
    usable(executor, begin(executor), PROMPT)
