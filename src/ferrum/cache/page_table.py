"""The page table: rows of pages (`page_rows.py`) whose full pages can be found by content hash.

Hashed pages outlive their sequence while there is room, and a new sequence with the same prefix adopts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from ferrum.cache.page_hashes import PartialPage, SequenceHashes, longest_match
from ferrum.cache.page_room import FREED as FREED
from ferrum.cache.page_room import Stored
from ferrum.cache.page_rows import PageRows
from ferrum.cache.pool import HashedPage, PageHash
from ferrum.cache.pool import PageCopy as PageCopy
from ferrum.cache.pool import PageGroup as PageGroup
from ferrum.cache.state_slots import StateSlots
from ferrum.cache.tiered_restore import PageTier, Restores
from ferrum.core.snapshots import PrefixCounts


class PageTable(PageRows):
    """Pages of all sequences in all groups.

    Args:
        groups, max_draft, states, unpaged: see `PageRoom`.

    Attributes:
        restores: pages on their way back from a KV tier.
    """

    def __init__(
        self, groups: Iterable[PageGroup], *, max_draft: int = 16, states: StateSlots | None = None, unpaged: int = 0
    ) -> None:
        super().__init__(groups, max_draft=max_draft, states=states, unpaged=unpaged)
        self.restores = Restores(self)
        self._asked = self._found = 0

    @property
    def shares_prefixes(self) -> bool:
        """Whether pages are all that a sequence depends on, so that another one can begin with them."""
        return bool(self.groups) and self.states is None

    def match(self, page_hashes: Sequence[PageHash]) -> int:
        """Return how many leading pages a new sequence can adopt.

        A group with a window needs only those of them that the next query sees.
        """
        if not self.shares_prefixes:
            return 0
        return longest_match(self.groups, self._pools, page_hashes)

    def has_page(self, group: str, page_hash: PageHash) -> bool:
        """Return whether the group has a published page with this hash."""
        return self._pools[self._index[group]].hashes.find(page_hash) is not None

    def has_partial_page(self, page_hash: PageHash) -> bool:
        """Return whether all groups have a page with this hash."""
        return self.shares_prefixes and all(pool.hashes.find(page_hash) is not None for pool in self._pools)

    def publish_partial_page(self, cache_id: str, length: int, page_hash: PageHash) -> None:
        """Let the page that ends the first `length` tokens be found, though it is not full.

        Raises UnknownSequence.
        """
        stored = self._get(cache_id)
        pages = [row[length // self.page_size] for row in stored.rows]
        if all(pool.is_written(page) for pool, page in zip(self._pools, pages, strict=True)):
            for pool, page in zip(self._pools, pages, strict=True):
                hashed = pool.hashes.assign(page, page_hash, partial=True)
                if hashed is not None:
                    pool.publish(hashed)
            stored.room = min(stored.room, stored.length)

    def publish_page(self, group: str, page: int, page_hash: PageHash) -> None:
        """Publish a page that belongs to a sequence and was written from a KV tier."""
        pool = self._pools[self._index[group]]
        hashed = pool.hashes.assign(page, page_hash)
        assert hashed is not None, "a page reserved for a restore has no hash"
        pool.publish(hashed)

    def attach(self, tier: PageTier | None) -> None:
        """Set the KV tier that keeps copies of published pages."""
        self.restores.tier = tier
        for group, pool in zip(self.groups, self._pools, strict=True):
            pool.hashes.on_evict = None if tier is None else partial(tier.evicted, group.name)

    def adopt(
        self, cache_id: str, page_hashes: Sequence[PageHash], count: int, partial_page: PartialPage | None = None
    ) -> None:
        """Begin a sequence with the first `count` pages, which `match` has just found.

        Args:
            cache_id: must be unknown.
            page_hashes: of all its full pages, as far as its tokens are known: a view that its owner appends to.
            count: number of pages to begin with.
            partial_page: a page whose first tokens come next; all groups have it.
        """
        assert cache_id not in self._stored
        length = count * self.page_size + (0 if partial_page is None else partial_page.tokens)
        last = () if partial_page is None else (partial_page.page_hash,)
        rows, freed = [], [group.unseen(length) for group in self.groups]
        for gone, pool in zip(freed, self._pools, strict=True):
            rows.append([FREED] * gone + [pool.adopt(each) for each in (*page_hashes[gone:count], *last)])
        self._stored[cache_id] = Stored(rows, freed, length, self._tick(), SequenceHashes(page_hashes, count))

    def label(self, cache_id: str, page_hashes: Sequence[PageHash]) -> None:
        """Set the hashes of a sequence that did not begin by `adopt`. Raises UnknownSequence."""
        self._get(cache_id).hashes = SequenceHashes(page_hashes)

    def publish(self, cache_id: str) -> None:
        """Let others find the sequence's full pages, after its logits were finite. Raises UnknownSequence."""
        stored = self._get(cache_id)
        self._assign_hashes(stored)
        tier = self.restores.tier
        for pool, hashed in stored.hashes.publish():
            if tier is not None:
                tier.keep(self.groups[self._pools.index(pool)].name, hashed)

    def holds(self, group: str, hashed: HashedPage) -> bool:
        """Return whether the page still has its hash. Safe to call from any thread."""
        return self._pools[self._index[group]].hashes.holds(hashed)

    def count_lookup(self, asked: int, found: int) -> None:
        """Count a lookup of a prompt of `asked` tokens, `found` of which were adopted."""
        self._asked += asked
        self._found += found

    def prefix_counts(self) -> PrefixCounts:
        """Return the counts of the prefix cache."""
        hashes = [pool.hashes for pool in self._pools]
        return PrefixCounts(
            cached_pages=sum(map(len, hashes)),
            evicted_pages=sum([each.evicted for each in hashes]),
            query_tokens=self._asked,
            hit_tokens=self._found,
            restored_pages=self.restores.pages,
            external_query_tokens=self.restores.asked_tokens,
            external_hit_tokens=self.restores.found_tokens,
            shared_pages=self.shared,
        )

    def reset(self) -> None:
        """Remove every sequence and every prefix, after pending restores have finished."""
        self.restores.finish()
        self._stored.clear()
        for pool in self._pools:
            pool.clear()
        if self.states is not None:
            self.states.reset()
