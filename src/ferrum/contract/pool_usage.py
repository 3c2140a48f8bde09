"""What an executor's pool holds: stored tokens, filled pages, and counters. It changes nothing and takes no lock."""

from __future__ import annotations

from contextlib import suppress

from ferrum.contract.sequences import SequenceStore
from ferrum.core.errors import UnknownSequence
from ferrum.core.memory_plan import MemoryPlan
from ferrum.core.snapshots import CacheMetricsSnapshot, SpeculationCounts


def memory_efficiency(pages: SequenceStore, plan: MemoryPlan) -> float:
    """Return used / allocated bytes of the pages in use, in [0, 1]; 0 without any.

    A page that several sequences share counts once. Pages that left a sliding window are not stored.
    """
    used = held = 0.0
    for group, part in zip(pages.groups, plan.pool, strict=False):
        filled: dict[int, int] = {}
        for cache_id in pages.ids():
            with suppress(UnknownSequence):  # it may be released meanwhile
                length = pages.length(cache_id)
                for index, page in enumerate(pages.row(cache_id, group.name)):
                    tokens = min(group.page_size, length - index * group.page_size)
                    if page >= 0 and tokens > filled.get(page, 0):
                        filled[page] = tokens
        in_use = max(len(filled), group.num_pages - pages.free(group.name))
        used += part.page_bytes * sum(filled.values()) / group.page_size
        held += part.page_bytes * in_use
    return used / held if held else 0.0


def stored_tokens(pages: SequenceStore) -> int:
    """Return the tokens of all sequences."""
    tokens = 0
    for cache_id in pages.ids():
        with suppress(UnknownSequence):
            tokens += pages.length(cache_id)
    return tokens


def cache_snapshot(pages: SequenceStore, speculation: SpeculationCounts) -> CacheMetricsSnapshot:
    """Return the counters of the KV cache and of speculation."""
    prefix = pages.prefix_counts()
    return CacheMetricsSnapshot(
        total_pages=sum(group.num_pages for group in pages.groups),
        used_pages=pages.used,
        shared_pages=pages.shared,
        sequences=len(pages.ids()),
        stored_tokens=stored_tokens(pages),
        cached_pages=prefix.cached_pages,
        evicted_pages=prefix.evicted_pages,
        prefix_query_tokens=prefix.query_tokens,
        prefix_hit_tokens=prefix.hit_tokens,
        restored_pages=prefix.restored_pages,
        external_query_tokens=prefix.external_query_tokens,
        external_hit_tokens=prefix.external_hit_tokens,
        state_slots=prefix.state_slots,
        state_bytes=prefix.state_bytes,
        used_slots=prefix.used_slots,
        snapshots=prefix.snapshots,
        snapshot_hits=prefix.snapshot_hits,
        evicted_snapshots=prefix.evicted_snapshots,
        speculation=speculation,
    )
