"""The page table: rows of pages (`cache.rows`), and the names by which full pages are found again.

Named pages (`cache.prefix`) outlive their sequence while there is room, and a new sequence that begins with the same
tokens adopts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from ferrum.cache.layer_groups import PageCopy as PageCopy
from ferrum.cache.layer_groups import PageGroup as PageGroup
from ferrum.cache.page_hashes import Name, NamedPage
from ferrum.cache.page_rows import FREED as FREED
from ferrum.cache.page_rows import PageRows, Stored
from ferrum.cache.prefix_hash import SequenceNames, Tail, longest_match
from ferrum.cache.tiered_restore import PageKeeper, Restores
from ferrum.core.snapshots import PrefixCounts


class PageTable(PageRows):
    """Pages of all sequences in all groups.

    Args:
        groups, max_draft: see `PageRows`.

    Attributes:
        restores: what comes back into the pool from where it was kept.
    """

    def __init__(self, groups: Iterable[PageGroup], *, max_draft: int = 16) -> None:
        super().__init__(groups, max_draft=max_draft)
        self.restores = Restores(self)
        self._asked = self._found = 0

    def match(self, names: Sequence[Name]) -> int:
        """How many of the leading pages of a sequence are there, by their names.

        A group with a window needs only those of them that the next query sees.
        """
        return longest_match(self.groups, self._pools, names)

    def finds(self, group: str, name: Name) -> bool:
        """Whether the group has a page of that name."""
        return self._pools[self._index[group]].names.find(name) is not None

    def has_tail(self, name: Name) -> bool:
        """Whether all groups have a page of that name."""
        return all(pool.names.find(name) is not None for pool in self._pools)

    def keep_tail(self, cache_id: str, length: int, name: Name) -> None:
        """Let the page that the first `length` tokens end in be found, though it is not full.

        Raises UnknownSequence.
        """
        stored = self._get(cache_id)
        pages = [row[length // self.groups[0].page_size] for row in stored.rows]
        if all(pool.is_written(page) for pool, page in zip(self._pools, pages, strict=True)):
            for pool, page in zip(self._pools, pages, strict=True):
                named = pool.names.give(page, name, partial=True)
                if named is not None:
                    pool.prove(named)

    def name(self, group: str, page: int, name: Name) -> None:
        """Let a page be found under a name that belongs to a sequence and was written from a copy."""
        pool = self._pools[self._index[group]]
        named = pool.names.give(page, name)
        assert named is not None, "it was taken for this"
        pool.prove(named)

    def attach(self, keeper: PageKeeper | None) -> None:
        """Let somebody keep copies of named pages, in the place of whoever did so far."""
        self.restores.keeper = keeper
        for group, pool in zip(self.groups, self._pools, strict=True):
            pool.names.on_evict = None if keeper is None else partial(keeper.evicted, group.name)

    def adopt(self, cache_id: str, names: Sequence[Name], count: int, tail: Tail | None = None) -> None:
        """Begin a sequence with the pages of the first `count` names, which `match` has found just now.

        Args:
            cache_id: must be unknown.
            names: of all its full pages, as far as its tokens are known: a view that its owner appends to.
            count: how many of them to begin with.
            tail: a page whose first tokens come next; it is there in all groups.
        """
        assert cache_id not in self._stored
        length = count * self.groups[0].page_size + (0 if tail is None else tail.tokens)
        last = () if tail is None else (tail.name,)
        rows, freed = [], [group.unseen(length) for group in self.groups]
        for gone, pool in zip(freed, self._pools, strict=True):
            rows.append([FREED] * gone + [pool.adopt(name) for name in (*names[gone:count], *last)])
        self._stored[cache_id] = Stored(rows, freed, length, self._tick(), SequenceNames(names, count))

    def label(self, cache_id: str, names: Sequence[Name]) -> None:
        """Say what the pages of a sequence are called that was not begun by `adopt`. Raises UnknownSequence."""
        self._get(cache_id).names = SequenceNames(names)

    def prove(self, cache_id: str) -> None:
        """Let the full pages of the sequence be found by others: what it has computed is sound.

        Raises UnknownSequence.
        """
        stored = self._get(cache_id)
        self._name(stored)
        keeper = self.restores.keeper
        for pool, named in stored.names.prove():
            if keeper is not None:
                keeper.keep(self.groups[self._pools.index(pool)].name, named)

    def holds(self, group: str, named: NamedPage) -> bool:
        """Whether the page still has its name; may be asked from any thread."""
        return self._pools[self._index[group]].names.holds(named)

    def count_lookup(self, asked: int, found: int) -> None:
        """Note that a prompt of `asked` tokens was looked up, of which `found` were adopted."""
        self._asked += asked
        self._found += found

    def prefix_counts(self) -> PrefixCounts:
        """How the names have served so far."""
        names = [pool.names for pool in self._pools]
        return PrefixCounts(
            cached_pages=sum(map(len, names)),
            evicted_pages=sum([each.evicted for each in names]),
            query_tokens=self._asked,
            hit_tokens=self._found,
            restored_pages=self.restores.pages,
            external_query_tokens=self.restores.asked_tokens,
            external_hit_tokens=self.restores.found_tokens,
            shared_pages=self.shared,
        )

    def reset(self) -> None:
        """Forget every sequence and every prefix; first, wait for pages that are being written."""
        self.restores.finish()
        self._stored.clear()
        for pool in self._pools:
            pool.clear()
