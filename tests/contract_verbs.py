"""The executor contract, verb by verb, for any executor.

A module that imports these tests defines the fixture `make`, which builds a `Kit`. `forward`, of one list of tokens, is
the truth that all other ways to the same position are compared with, bit for bit.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from contract_kit import POISON, Kit, Maker
from ferrum.core.contract import (
    DecodeInput,
    KvCacheHandle,
    LogitsPolicy,
    PrefillInput,
    UnifiedBatch,
    UnifiedBatchItem,
)
from ferrum.core.errors import (
    ContextOverflow,
    ExecutorInUse,
    InvalidHandle,
    InvalidToken,
    KvExhausted,
    RequestError,
    StaleHandle,
    StepError,
    UnknownSequence,
    Unsupported,
)
from ferrum.core.executor import BatchModelExecutor, ModelExecutor, SpeculativeExecutor
from ferrum.core.step import Rows, Span, StepBatch, Want

PROMPT = [3, 14, 15, 92, 65, 35, 89]
OTHER = [2, 71, 82, 81]

contract = pytest.mark.contract


def truth(executor: ModelExecutor, tokens: list[int]) -> np.ndarray:
    """[S, V] of the tokens alone, in one span."""
    return executor.forward([tokens])[0]


def begin(executor: ModelExecutor, tokens: list[int] = PROMPT) -> KvCacheHandle:
    return executor.prefill(PrefillInput([tokens])).kv_cache


def same(a: np.ndarray, b: np.ndarray) -> None:
    assert a.dtype == b.dtype == np.float32
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def usable(executor: ModelExecutor, handle: KvCacheHandle, tokens: list[int]) -> None:
    """The sequence is as it was when the handle was made: the handle is good, and the next token sees all of them."""
    assert executor.handle(handle.cache_id).sequence_length == len(tokens)
    same(executor.decode(DecodeInput([7], handle)).logits, truth(executor, [*tokens, 7])[-1:])


@pytest.fixture
def kit(make: Maker) -> Kit:
    return make()


@pytest.fixture
def executor(kit: Kit) -> ModelExecutor:
    return kit.executor


@pytest.fixture(autouse=True)
def _books(request: pytest.FixtureRequest) -> object:
    yield
    if "kit" in request.fixturenames:
        request.getfixturevalue("kit").check()


# Prompts


@contract("1.PrefillOutput")
@contract("2.prefill")
def test_a_prefill_returns_the_last_position(kit, executor):
    output = executor.prefill(PrefillInput(np.array([PROMPT])))
    assert output.logits.shape == (1, 1, executor.info.vocab_size)
    same(output.logits[0], truth(executor, PROMPT)[-1:])
    same(output.last_token_logits(), output.logits[:, -1])
    assert output.kv_cache.sequence_length == len(PROMPT)
    assert output.hidden_states is None and output.attention_weights is None


@contract("2.prefill")
def test_all_positions_on_demand(executor):
    output = executor.prefill(PrefillInput(PROMPT, logits="all"))
    same(output.logits[0], truth(executor, PROMPT))


@contract("2.prefill")
def test_fresh_sequences_are_numbered_and_never_share_a_name(executor):
    names = [begin(executor).cache_id]
    executor.release_cache(names[0])
    with pytest.raises(InvalidToken):
        executor.prefill(PrefillInput([[executor.info.vocab_size]]))
    names += [begin(executor).cache_id for _ in range(2)]
    numbers = [int(name.removeprefix("llm-cache-")) for name in names]
    assert names[0] == "llm-cache-0" and numbers == sorted(set(numbers))


@contract("2.prefill")
@pytest.mark.parametrize("cuts", [(1, 1, 5), (3, 4), (6, 1), (1,) * 7])
def test_chunks_give_the_bits_of_the_whole(executor, cuts):
    handle, position = None, 0
    for size in cuts:
        given = PrefillInput([PROMPT[position : position + size]], logits="all")
        output = executor.prefill(given if handle is None else given.with_kv_cache(handle))
        same(output.logits[0], truth(executor, PROMPT)[position : position + size])
        assert handle is None or output.kv_cache.cache_id == handle.cache_id
        handle, position = output.kv_cache, position + size
        assert handle.sequence_length == position


@contract("2.batch_prefill")
def test_a_cohort_takes_one_pass_and_changes_no_bits(kit, executor):
    handle = begin(executor, OTHER)
    before = kit.passes()
    inputs = [PrefillInput([PROMPT], logits="all"), PrefillInput([PROMPT[:3]], kv_cache=handle), PrefillInput([[9]])]
    outputs = executor.batch_prefill(inputs)
    assert kit.passes() == before + 1
    same(outputs[0].logits[0], truth(executor, PROMPT))
    same(outputs[1].logits[0], truth(executor, OTHER + PROMPT[:3])[-1:])
    same(outputs[2].logits[0], truth(executor, [9]))
    assert [output.kv_cache.sequence_length for output in outputs] == [7, 7, 1]


@contract("1.PrefillInput")
def test_several_prompts_in_one_input_are_sent_to_batch_prefill(executor):
    with pytest.raises(RequestError, match="batch_prefill") as caught:
        executor.prefill(PrefillInput([PROMPT, PROMPT]))
    assert caught.value.param == "input_ids"


@contract("1.PrefillInput")
@contract("1.DecodeInput")
def test_masks_and_positions_that_say_what_happens_are_honoured(executor):
    first = executor.prefill(PrefillInput([PROMPT], attention_mask=[[1] * 7], position_ids=np.arange(7)[None]))
    second = PrefillInput([OTHER], kv_cache=first.kv_cache).with_position_ids([[7, 8, 9, 10]])
    handle = executor.prefill(second.with_attention_mask([[1] * 11])).kv_cache
    same(executor.decode(DecodeInput([5], handle, [[11]])).logits, truth(executor, [*PROMPT, *OTHER, 5])[-1:])


@contract("1.PrefillInput")
@contract("1.DecodeInput")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention_mask", [[0, 1, 1, 1, 1, 1, 1]]),
        ("attention_mask", [[1, 1, 1, 1, 1, 1, 0]]),
        ("attention_mask", [[1, 1]]),
        ("position_ids", [[1, 2, 3, 4, 5, 6, 7]]),
        ("position_ids", [[0, 1, 2, 3, 4, 5, 5]]),
        ("position_ids", [[0]]),
    ],
)
def test_masks_and_positions_that_say_otherwise_are_refused(executor, field, value):
    with pytest.raises(RequestError) as caught:
        executor.prefill(PrefillInput([PROMPT], **{field: value}))
    assert caught.value.param == field
    handle = begin(executor)
    with pytest.raises(RequestError) as caught:
        executor.decode(DecodeInput([1], handle, [[6]]))
    assert caught.value.param == "position_ids"


@contract("1.PrefillInput")
def test_a_token_that_the_model_lacks_is_named_with_its_position(executor):
    unknown = executor.info.vocab_size
    with pytest.raises(InvalidToken, match=f"{unknown} at position 2"):
        executor.prefill(PrefillInput([[1, 2, unknown]]))


@contract("2.forward")
def test_forward_keeps_no_sequence(kit, executor):
    logits = executor.forward([PROMPT[:4], OTHER])
    assert logits.shape == (2, 4, executor.info.vocab_size)
    same(logits[1], truth(executor, OTHER))
    same(executor.forward(OTHER)[0], logits[1])
    assert executor.cache_metrics_snapshot().sequences == 0
    with pytest.raises(StepError):
        executor.forward([[1, POISON]])
    assert executor.cache_metrics_snapshot().sequences == 0


# One more token


@contract("1.DecodeOutput")
@contract("2.decode")
def test_a_decode_is_the_next_position(executor):
    handle, tokens = begin(executor), list(PROMPT)
    for token in (5, 6, 7):
        output = executor.decode(DecodeInput([[token]], handle))
        tokens.append(token)
        assert output.logits.shape == (1, executor.info.vocab_size)
        same(output.logits, truth(executor, tokens)[-1:])
        handle = output.kv_cache
        assert handle.sequence_length == len(tokens)


@contract("2.batch_decode")
def test_a_batch_of_decodes_takes_one_pass_and_keeps_its_order(kit, executor):
    prompts = [PROMPT, OTHER, [9], PROMPT[:5]]
    handles = [begin(executor, prompt) for prompt in prompts]
    before = kit.passes()
    outputs = executor.batch_decode([DecodeInput([40 + i], handle) for i, handle in reversed([*enumerate(handles)])])
    assert kit.passes() == before + 1
    for i, output in zip((3, 2, 1, 0), outputs, strict=True):
        same(output.logits, truth(executor, [*prompts[i], 40 + i])[-1:])
        assert output.kv_cache.cache_id == handles[i].cache_id


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


@contract("2.batch_decode")
@contract("2.errors")
def test_all_advance_or_none(kit, executor):
    handles = [begin(executor, prompt) for prompt in (PROMPT, OTHER, [9])]
    with pytest.raises(StepError):
        executor.batch_decode([DecodeInput([token], h) for token, h in zip((1, POISON, 2), handles, strict=True)])
    for handle, tokens in zip(handles, (PROMPT, OTHER, [9]), strict=True):
        usable(executor, handle, tokens)


@contract("2.errors")
def test_failures_of_a_mixed_batch_leave_chunks_and_beginnings_undone(kit, executor):
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
def test_long_chunks_are_undone_under_a_window(make):
    kit = make(window=6)
    handle = begin(kit.executor)
    long = [(7 * i) % 100 for i in range(40)]
    with pytest.raises(StepError):
        kit.executor.batch_prefill([PrefillInput([long], kv_cache=handle), PrefillInput([[POISON]])])
    kit.check()
    usable(kit.executor, handle, PROMPT)


@contract("2.errors")
def test_exhaustion_is_told_and_undone(make):
    kit = make(num_pages=6)
    one, two = begin(kit.executor, PROMPT[:4]), begin(kit.executor, OTHER)
    with pytest.raises(KvExhausted):
        kit.executor.batch_prefill([PrefillInput([OTHER], kv_cache=one), PrefillInput([PROMPT * 3], kv_cache=two)])
    kit.check()
    usable(kit.executor, one, PROMPT[:4])
    usable(kit.executor, two, OTHER)


@contract("2.errors")
def test_the_context_is_a_limit(make):
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


@contract("2.forward_verify")
def test_verified_rows_are_so_many_decodes(kit, executor):
    handle, drafts = begin(executor), [5, 6, 7, 8]
    before = kit.passes()
    outputs = executor.forward_verify([DecodeInput([token], handle) for token in drafts])
    assert kit.passes() == before + 1
    for row, output in enumerate(outputs):
        same(output.logits, truth(executor, PROMPT + drafts)[len(PROMPT) + row][None])
        assert output.kv_cache.sequence_length == len(PROMPT) + row + 1
    assert len({output.kv_cache.generation for output in outputs}) == 1
    with pytest.raises(StaleHandle):
        executor.decode(DecodeInput([1], outputs[1].kv_cache))
    back = executor.truncate_kv(outputs[1].kv_cache, outputs[1].kv_cache.sequence_length)
    usable(executor, back, PROMPT + drafts[:2])


@contract("2.forward_verify")
def test_a_verification_is_of_one_sequence(executor):
    one, two = begin(executor), begin(executor)
    with pytest.raises(RequestError):
        executor.forward_verify([DecodeInput([1], one), DecodeInput([2], two)])
    with pytest.raises(RequestError):
        executor.forward_verify([DecodeInput([1], one), DecodeInput([2], one, [[7]])])
    usable(executor, one, PROMPT)


def greedy(executor: ModelExecutor, tokens: list[int], count: int) -> list[int]:
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(int(truth(executor, tokens)[-1].argmax()))
    return tokens[-count:]


@contract("1.SpeculativeDecodeOutput")
@contract("2.speculative_decode")
@contract("5.speculation is exact")
@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_drafts_are_kept_while_they_are_what_would_be_chosen(executor, right):
    chosen = greedy(executor, [*PROMPT, 5], 3)
    drafts = [token if i < right else (token + 1) % 100 for i, token in enumerate(chosen)]
    output = executor.speculative_decode(DecodeInput([5], begin(executor)), drafts)
    assert output.acceptance_count == right and list(output.accepted_tokens) == drafts[:right]
    tokens = [*PROMPT, 5, *drafts[:right]]
    same(output.next_logits, truth(executor, tokens)[-1:])
    assert output.kv_cache.sequence_length == len(PROMPT) + 1 + right
    usable(executor, output.kv_cache, tokens)


@contract("2.speculative_decode")
def test_without_drafts_it_is_a_decode(executor):
    output = executor.speculative_decode(DecodeInput([5], begin(executor)), [])
    assert output.accepted_tokens == ()
    same(output.next_logits, truth(executor, [*PROMPT, 5])[-1:])


@contract("2.speculative_decode")
def test_failed_and_contradicting_speculation_changes_nothing(executor):
    handle = begin(executor)
    with pytest.raises(StepError):
        executor.speculative_decode(DecodeInput([5], handle), [1, POISON])
    with pytest.raises(InvalidToken):
        executor.speculative_decode(DecodeInput([5], handle), [-1])
    with pytest.raises(Unsupported):
        executor.speculative_decode(DecodeInput([5], handle, return_hidden_states=True), [1])
    usable(executor, handle, PROMPT)


@contract("2.speculative_decode")
def test_a_threshold_accepts_what_is_likely_enough_or_is_refused(executor):
    handle = begin(executor)
    row = truth(executor, [*PROMPT, 5])[-1].astype(np.float64)
    second = int(np.argsort(-row)[1])
    ratio = float(np.exp(row[second] - row.max()))
    try:
        output = executor.speculative_decode(DecodeInput([5], handle), [second], ratio * 0.9)
    except Unsupported:
        usable(executor, handle, PROMPT)
        return
    assert output.accepted_tokens == (second,)
    back = executor.truncate_kv(output.kv_cache, len(PROMPT))
    assert executor.speculative_decode(DecodeInput([5], back), [second], min(1.0, ratio * 1.1)).accepted_tokens == ()
    with pytest.raises(RequestError):
        executor.speculative_decode(DecodeInput([5], executor.handle(back.cache_id)), [second], 1.5)


# Any mixture


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
    logits = executor.unified_decode(batch)
    assert kit.passes() == before + 1
    same(logits[0], truth(executor, [8]))
    same(logits[1], truth(executor, [*PROMPT, 5])[-1:])
    assert logits[2] is None
    same(logits[3], truth(executor, [9, 1, 2, 3])[1:])
    usable(executor, executor.handle(two.cache_id), OTHER + PROMPT)
    assert executor.status().prefill_operations >= 1


@contract("2.unified_decode")
@pytest.mark.parametrize(
    ("item", "param"),
    [
        (UnifiedBatchItem("fresh", [1], 3), "pos_offset"),
        (UnifiedBatchItem("llm-cache-99", [1], 0), "seq_id"),
        (UnifiedBatchItem("fresh", [10**6], 0), "q_tokens"),
    ],
)
def test_items_that_do_not_fit_are_refused_with_their_field(executor, item, param):
    handle = begin(executor)
    with pytest.raises(RequestError) as caught:
        executor.unified_decode(UnifiedBatch((UnifiedBatchItem(handle, [5], 7), item)))
    assert caught.value.param == param
    usable(executor, handle, PROMPT)


@contract("2.unified_decode")
def test_an_adapter_that_nobody_loaded_is_refused(executor):
    with pytest.raises(Unsupported):
        executor.unified_decode(UnifiedBatch((UnifiedBatchItem("fresh", [1], 0, adapter="mine"),)))
    assert executor.cache_metrics_snapshot().sequences == 0


@contract("2.batch_prefill")
@contract("2.batch_decode")
@contract("2.forward_verify")
@contract("2.unified_decode")
def test_an_empty_list_is_answered_without_the_model(kit, executor):
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


# Sequences and handles


@contract("1.KvCacheHandle")
def test_a_handle_describes_what_is_stored(kit, executor):
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
    assert len(handle.block_table) == (2 if kit.paged else 0)
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
def test_a_released_sequence_is_unknown_even_when_its_name_is_used_again(executor):
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
    for handle in (foreign, "llm-cache-0", None):
        for use in verbs_on(executor, handle):
            if handle is None and use.__name__ == "prefill":
                continue
            with pytest.raises(InvalidHandle):
                use()


def verbs_on(executor: ModelExecutor, handle):
    def prefill():
        executor.prefill(PrefillInput([[1]], kv_cache=handle))

    def decode():
        executor.decode(DecodeInput([1], handle))

    def verify():
        executor.forward_verify([DecodeInput([1], handle)])

    def speculate():
        executor.speculative_decode(DecodeInput([1], handle), [2])

    def truncate():
        executor.truncate_kv(handle, 1)

    def fork():
        executor.fork(handle)

    def unified():
        if isinstance(handle, KvCacheHandle):
            executor.unified_decode(UnifiedBatch((UnifiedBatchItem(handle, [1], 7),)))
        else:
            raise InvalidHandle("a name is no handle here")

    return prefill, decode, verify, speculate, truncate, fork, unified


@contract("2.truncate_kv")
def test_truncation_is_as_if_it_had_never_gone_further(executor):
    handle = executor.prefill(PrefillInput([PROMPT + OTHER])).kv_cache
    back = executor.truncate_kv(handle, 5)
    assert back.sequence_length == 5 and back.cache_id == handle.cache_id
    usable(executor, back, PROMPT[:5])
    assert executor.truncate_kv_for_cache_id(handle.cache_id, 2).sequence_length == 2
    usable(executor, executor.handle(handle.cache_id), PROMPT[:2])


@contract("2.truncate_kv")
def test_truncation_has_limits(executor):
    handle = begin(executor)
    for length in (8, -1):
        with pytest.raises(RequestError) as caught:
            executor.truncate_kv(handle, length)
        assert caught.value.param == "new_len"
    assert executor.truncate_kv(handle, 7) == handle
    with pytest.raises(UnknownSequence):
        executor.truncate_kv_for_cache_id("nobody", 0)


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
def test_a_fork_shares_full_pages_and_copies_one(kit, executor):
    if not kit.paged:
        pytest.skip("the model keeps its sequences its own way")
    base = begin(executor, PROMPT)  # two pages of four, the second partly filled
    used = executor.cache_metrics_snapshot().used_pages
    clone = executor.fork(base)
    snapshot = executor.cache_metrics_snapshot()
    assert (snapshot.used_pages, snapshot.shared_pages) == (used, used)
    after = executor.decode(DecodeInput([1], clone)).kv_cache
    assert executor.cache_metrics_snapshot().used_pages == used + 1
    assert after.block_table[0] == base.block_table[0] and after.block_table[1] != base.block_table[1]


@contract("2.release_cache")
def test_release_is_idempotent_and_touches_nobody_else(executor, caplog):
    one, two = begin(executor), begin(executor, OTHER)
    with caplog.at_level("DEBUG", logger="ferrum.executor"):
        for _ in range(2):
            executor.release_cache(one.cache_id)
    executor.release_cache("nobody")
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG"]
    assert one.cache_id in caplog.text
    usable(executor, two, OTHER)


@contract("2.reset")
def test_reset_drops_every_sequence(executor):
    handles = [begin(executor), begin(executor, OTHER)]
    executor.reset()
    assert executor.cache_metrics_snapshot().used_pages == 0
    for handle in handles:
        with pytest.raises(UnknownSequence):
            executor.decode(DecodeInput([1], handle))
    usable(executor, begin(executor), PROMPT)


@contract("1.PrefillInput")
@contract("1.DecodeOutput")
def test_hidden_states_come_where_asked_for(kit, executor):
    if not kit.hidden:
        with pytest.raises(Unsupported):
            executor.prefill(PrefillInput([PROMPT], return_hidden_states=True))
        return
    output = executor.prefill(PrefillInput([PROMPT], return_hidden_states=True))
    assert output.hidden_states.shape == (1, 7, executor.info.hidden_size)
    handle = output.kv_cache
    verified = executor.forward_verify([DecodeInput([5], handle, return_hidden_states=True), DecodeInput([6], handle)])
    assert verified[0].hidden_state.shape == (1, executor.info.hidden_size) and verified[1].hidden_state is None
    back = executor.truncate_kv(verified[0].kv_cache, 7)
    alone = executor.decode(DecodeInput([5], back, return_hidden_states=True))
    same(alone.hidden_state, verified[0].hidden_state)


@contract("1.PrefillInput")
@contract("1.DecodeOutput")
def test_attention_weights_are_distributions_or_refused(executor):
    given = PrefillInput([PROMPT], return_attention_weights=True)
    if not executor.traits.attention_weights:
        with pytest.raises(Unsupported, match="return_attention_weights"):
            executor.prefill(given)
        assert executor.cache_metrics_snapshot().sequences == 0
        return
    output = executor.prefill(given)
    decoded = executor.decode(DecodeInput([5], output.kv_cache, return_attention_weights=True))
    for weights, shape in ((output.attention_weights, (7, 7)), (decoded.attention_weights, (1, 8))):
        assert len(weights) == executor.info.num_layers
        for layer in weights:
            assert layer.shape == (executor.info.num_heads, *shape)
            np.testing.assert_allclose(layer.sum(axis=-1), 1.0, atol=1e-2)
    assert np.triu(output.attention_weights[0], 1).max() == 0.0


# The lease, and threads


@contract("2.lease")
def test_while_a_lease_is_held_only_its_owner_has_sequences(executor):
    handle = begin(executor)
    with executor.lease("an engine"):
        others = [
            *verbs_on(executor, handle)[:-1],
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
        except Exception as error:  # noqa: BLE001 - told below
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
