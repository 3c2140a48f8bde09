"""What is shared and what is copied, for executors whose handles name pages.

A module that imports these tests has the fixtures of `contract_verbs` too.
"""

from __future__ import annotations

from contract_kit import PROMPT
from contract_verbs.kit import begin, contract
from ferrum.core.contract import DecodeInput


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
