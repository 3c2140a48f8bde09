"""The counters of the prefix cache, gathered from pools, KV tiers and slots of states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ferrum.cache.pool import PagePool
from ferrum.core.snapshots import PrefixCounts

if TYPE_CHECKING:
    from ferrum.cache.tiered_restore import Restores


def counted(
    pools: Sequence[PagePool], restores: Restores, states: Mapping[str, int], *, asked: int, found: int
) -> PrefixCounts:
    """Return the counts of the prefix cache.

    Args:
        pools: of all groups.
        restores: of pages from a KV tier.
        states: counts of slots and snapshots by their names; empty if no layer has a state.
        asked, found: prompt tokens looked up and adopted.
    """
    return PrefixCounts(
        cached_pages=sum([len(pool.hashes) for pool in pools]),
        evicted_pages=sum([pool.hashes.evicted for pool in pools]),
        query_tokens=asked,
        hit_tokens=found,
        restored_pages=restores.pages,
        external_query_tokens=restores.asked_tokens,
        external_hit_tokens=restores.found_tokens,
        shared_pages=sum([pool.shared for pool in pools]),
        **states,
    )
