"""Shared and copied pages, for executors whose handles name pages.

A module that imports these tests also has the fixtures of `contract_verbs`.
"""

from __future__ import annotations

from contract_kit import OTHER, PROMPT, same
from contract_verbs.kit import begin, contract, truth, usable
from ferrum.verbs.io_types import DecodeInput, PrefillInput


@contract("2.fork")
def test_a_fork_shares_full_pages_and_copies_one(executor):
    base = begin(executor, PROMPT)  # two pages of four, the second partly filled
    used = executor.cache_metrics_snapshot().used_pages
    assert len(base.block_table) == 2
    clone = executor.fork(base)
    snapshot = executor.cache_metrics_snapshot()
    assert (snapshot.used_pages, snapshot.shared_pages) == (used, used)
    after = executor.decode(DecodeInput([1], clone)).kv_cache
    assert executor.cache_metrics_snapshot().used_pages == used + 1
    assert after.block_table[0] == base.block_table[0] and after.block_table[1] != base.block_table[1]


@contract("2.errors")
def test_undo_needs_no_extra_pages(make):
    kit = make(window=6, num_pages=4)
    executor = kit.executor
    handles = [begin(executor, [1, 2]), begin(executor, [3, 4])]
    chunks = [PrefillInput([OTHER], kv_cache=handle) for handle in handles]
    after = [output.kv_cache for output in executor.batch_prefill(chunks)]
    assert executor.cache_metrics_snapshot().used_pages == 4
    executor.release_cache(after[0].cache_id)
    kept = executor.prefill(PrefillInput([[5, 6, 7, 8]])).kv_cache
    executor.speculative_decode(DecodeInput([9], after[1]), [1])
    assert executor.handle(kept.cache_id) == kept
    kit.check()


@contract("2.speculative_decode")
def test_drafts_longer_than_a_window_are_rolled_back(make):
    kit = make(window=6)
    executor = kit.executor
    output = executor.speculative_decode(DecodeInput([5], begin(executor)), [99] * 60)
    assert output.acceptance_count == 0
    same(output.next_logits, truth(executor, [*PROMPT, 5])[-1:])
    kit.check()
    fresh = begin(executor, [*PROMPT, 5])
    assert len(output.kv_cache.block_table) == len(fresh.block_table)
    usable(executor, output.kv_cache, [*PROMPT, 5])


@contract("2.speculative_decode")
def test_pages_outside_a_window_are_freed_after_verification(make):
    executor = make(window=6).executor
    tokens, one_by_one = [6], begin(executor)
    for _ in range(40):
        step = executor.decode(DecodeInput(tokens[-1:], one_by_one))
        one_by_one = step.kv_cache
        tokens.append(int(step.logits.argmax()))
    output = executor.speculative_decode(DecodeInput([6], begin(executor)), tokens[1:-1])
    assert output.acceptance_count == 39
    left = [[page < 0 for page in handle.block_table] for handle in (output.kv_cache, one_by_one)]
    assert any(left[0]) and left[0] == left[1]
    usable(executor, output.kv_cache, [*PROMPT, *tokens[:-1]])
