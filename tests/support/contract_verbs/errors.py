"""Errors leave every sequence as it was before the call."""

from __future__ import annotations

import numpy as np
import pytest

from contract_kit import OTHER, POISON, PROMPT
from contract_verbs.kit import begin, contract, usable
from ferrum.core.errors import ContextOverflow, InvalidToken, KvExhausted, RequestError, StepError
from ferrum.verbs.io_types import DecodeInput, PrefillInput, UnifiedBatch, UnifiedBatchItem


@contract("2.batch_decode")
@contract("2.errors")
def test_a_batch_is_checked_before_anything_runs(kit, executor):
    handles = [begin(executor, prompt) for prompt in (PROMPT, OTHER)]
    before = kit.passes()
    good = DecodeInput([1], handles[0])
    for bad, error in [
        (DecodeInput([executor.info.vocab_size], handles[1]), InvalidToken),
        (DecodeInput([1], handles[1], [[9]]), RequestError),
        (DecodeInput([2], handles[0]), RequestError),
    ]:
        with pytest.raises(error):
            executor.batch_decode([good, bad])
    assert kit.passes() == before
    usable(executor, handles[0], PROMPT)


@contract("2.errors")
def test_inputs_of_another_type_are_refused_by_argument(kit, executor):
    handle = begin(executor)
    before = kit.passes()
    prompt = PrefillInput([1])
    for param, call in [
        ("inputs", lambda: executor.prefill(None)),
        ("inputs", lambda: executor.prefill("12")),
        ("inputs", lambda: executor.prefill({1: 2})),
        ("input_ids", lambda: executor.prefill([])),
        ("input_ids", lambda: executor.prefill([1, "2"])),
        ("inputs", lambda: executor.batch_prefill(None)),
        ("inputs", lambda: executor.batch_prefill(prompt)),
        ("inputs", lambda: executor.batch_prefill([prompt, DecodeInput([1], handle)])),
        ("inputs", lambda: executor.decode(None)),
        ("inputs", lambda: executor.batch_decode(np.array([1]))),
        ("inputs", lambda: executor.forward_verify([DecodeInput([1], handle), 5])),
        ("inputs", lambda: executor.speculative_decode(prompt, [2])),
        ("batch", lambda: executor.unified_decode([])),
        ("items", lambda: executor.unified_decode(UnifiedBatch((1,)))),
        ("batch", lambda: executor.submit(None)),
    ]:
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.param == param
    assert executor.batch_prefill(np.array([])) == executor.forward_verify(iter(())) == []
    assert kit.passes() == before
    usable(executor, handle, PROMPT)


@contract("2.batch_decode")
@contract("2.errors")
def test_all_advance_or_none(kit, executor):
    handles = [begin(executor, prompt) for prompt in (PROMPT, OTHER, [9])]
    with pytest.raises(StepError):
        executor.batch_decode([DecodeInput([token], h) for token, h in zip((1, POISON, 2), handles, strict=True)])
    for handle, tokens in zip(handles, (PROMPT, OTHER, [9]), strict=True):
        usable(executor, handle, tokens)


@contract("2.errors")
def test_a_failed_mixed_batch_undoes_chunks_and_new_sequences(kit, executor):
    handle = begin(executor)
    for _ in range(2):
        with pytest.raises(StepError):
            executor.batch_prefill(
                [PrefillInput([OTHER], kv_cache=handle), PrefillInput([OTHER]), PrefillInput([[1, POISON]])]
            )
        assert executor.cache_metrics_snapshot().sequences == 1
        kit.check()
    usable(executor, handle, PROMPT)


@contract("2.errors")
def test_long_chunks_are_undone_with_a_window(make):
    kit = make(window=6)
    handle = begin(kit.executor)
    long = [(7 * i) % 100 for i in range(40)]
    with pytest.raises(StepError):
        kit.executor.batch_prefill([PrefillInput([long], kv_cache=handle), PrefillInput([[POISON]])])
    kit.check()
    usable(kit.executor, handle, PROMPT)


@contract("2.errors")
def test_copies_for_undo_have_unused_names(make):
    kit = make(window=6)
    begun = UnifiedBatch(tuple(UnifiedBatchItem(name, OTHER, 0) for name in ("a", "b", "b-undo", "b-undo-0")))
    kit.executor.unified_decode(begun)
    more = [UnifiedBatchItem(name, PROMPT, len(OTHER)) for name in ("a", "b")]
    fresh = UnifiedBatchItem("a-undo-0", OTHER, 0)
    kit.executor.unified_decode(UnifiedBatch((*more, fresh)))
    kit.check()
    assert sorted(kit.executor.pages.ids()) == ["a", "a-undo-0", "b", "b-undo", "b-undo-0"]
    usable(kit.executor, kit.executor.handle("a"), OTHER + PROMPT)
    usable(kit.executor, kit.executor.handle("b-undo"), OTHER)


@contract("2.errors")
def test_exhaustion_raises_and_is_undone(make):
    kit = make(num_pages=6)
    one, two = begin(kit.executor, PROMPT[:4]), begin(kit.executor, OTHER)
    with pytest.raises(KvExhausted):
        kit.executor.batch_prefill([PrefillInput([OTHER], kv_cache=one), PrefillInput([PROMPT * 2], kv_cache=two)])
    kit.check()
    usable(kit.executor, one, PROMPT[:4])
    usable(kit.executor, two, OTHER)


@contract("2.errors")
@contract("2.capabilities")
def test_what_can_never_fit_in_the_pool_overflows_the_context(make):
    kit = make(num_pages=3, max_batch_size=6)
    assert kit.executor.capabilities().max_sequence_length == 12 == kit.executor.kv_capacity()
    handle = begin(kit.executor, PROMPT)
    for call in (
        lambda: kit.executor.prefill(PrefillInput([1] * 13)),
        lambda: kit.executor.prefill(PrefillInput([1] * 6, kv_cache=handle)),
        lambda: kit.executor.forward([1] * 13),
        lambda: kit.executor.unified_decode(UnifiedBatch((UnifiedBatchItem("a", (1,) * 13, 0),))),
        lambda: kit.executor.speculative_decode(DecodeInput([1], handle), [1] * 5),
    ):
        with pytest.raises(ContextOverflow):
            call()
    with pytest.raises(KvExhausted):  # it may fit later
        kit.executor.prefill(PrefillInput([1] * 12))
    kit.executor.release_cache(handle.cache_id)
    assert kit.executor.prefill(PrefillInput([1] * 12)).kv_cache.sequence_length == 12


@contract("2.errors")
@contract("2.capabilities")
def test_a_batch_holds_at_most_a_sequence_for_each_page(make):
    executor = make(num_pages=3, page_size=1, max_batch_size=6).executor
    assert executor.capabilities().max_batch_size == 3
    with pytest.raises(RequestError, match="max_batch_size"):
        executor.batch_prefill([PrefillInput([1])] * 4)
    assert len(executor.batch_prefill([PrefillInput([1])] * 3)) == 3


@contract("2.errors")
def test_the_context_limits_every_verb(make):
    kit = make(max_sequence_length=9)
    handle = begin(kit.executor)
    with pytest.raises(ContextOverflow):
        kit.executor.prefill(PrefillInput([[1, 2, 3]], kv_cache=handle))
    with pytest.raises(ContextOverflow):
        kit.executor.prefill(PrefillInput([[1] * 10]))
    kit.executor.release_cache(handle.cache_id)
    assert kit.executor.prefill(PrefillInput([[1] * 9])).kv_cache.sequence_length == 9


@contract("2.errors")
def test_more_sequences_than_a_step_holds_are_refused(make):
    executor = make(max_batch_size=2).executor
    with pytest.raises(RequestError, match="max_batch_size"):
        executor.batch_prefill([PrefillInput([OTHER])] * 3)
