"""Index of one layer group's pages by content hash, with eviction of idle pages in LRU order.

A hash covers every token up to the page's end (`prefix_hash.py`), so two pages with one hash hold the same bits. A page
gets its hash when it is full, and is found by it once its sequence has published it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

PageHash: TypeAlias = bytes
"""A digest of everything that the keys and values of a page depend on."""


@dataclass(frozen=True, slots=True, eq=False)
class HashedPage:
    """A page with its hash. Compared by identity: both page and hash may be used again later.

    Attributes:
        page: page number.
        page_hash: its content hash.
        partial: the page is not full; such a page is not copied to other tiers when evicted.
    """

    page: int
    page_hash: PageHash
    partial: bool = False


class HashIndex:
    """Hashes of pages, and the idle ones among them, least recently used first. All O(1) per page.

    Attributes:
        evicted: number of pages that lost their hash to make room.
        on_evict: called with a published page just before it is evicted, while its content is intact.
    """

    def __init__(self) -> None:
        self.evicted = 0
        self.on_evict: Callable[[HashedPage], None] | None = None
        self._by_page: dict[int, HashedPage] = {}
        self._published: dict[PageHash, HashedPage] = {}
        # Not a plain dict: finding the first key of one that is emptied from the front is not O(1).
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_page)

    def __contains__(self, page: int) -> bool:
        return page in self._by_page

    @property
    def idle(self) -> int:
        """Number of hashed pages without owner."""
        return len(self._idle)

    def find(self, page_hash: PageHash) -> int | None:
        """Return the published page with this hash, or None."""
        hashed = self._published.get(page_hash)
        return None if hashed is None else hashed.page

    def find_run(self, page_hashes: Sequence[PageHash]) -> int:
        """Return how many leading hashes have a published page."""
        return next((count for count, each in enumerate(page_hashes) if each not in self._published), len(page_hashes))

    def assign(self, page: int, page_hash: PageHash, *, partial: bool = False) -> HashedPage | None:
        """Give a page a hash, not published yet; return None if it has one already."""
        if page in self._by_page:
            return None
        hashed = self._by_page[page] = HashedPage(page, page_hash, partial)
        return hashed

    def publish(self, hashed: HashedPage) -> bool:
        """Let a page be found; return False if another page with this hash was published before."""
        if self._by_page.get(hashed.page) is not hashed:
            return True  # evicted meanwhile
        return self._published.setdefault(hashed.page_hash, hashed) is hashed

    def holds(self, hashed: HashedPage) -> bool:
        """Return whether the page still has this hash. While it has, its content does not change."""
        return self._by_page.get(hashed.page) is hashed

    def remove(self, hashed: HashedPage) -> bool:
        """Remove the hash if the page still has it; return whether the page was idle and is now the caller's."""
        if self._by_page.get(hashed.page) is not hashed:
            return False
        del self._by_page[hashed.page]
        if self._published.get(hashed.page_hash) is hashed:
            del self._published[hashed.page_hash]
        was_idle = hashed.page in self._idle
        self._idle.pop(hashed.page, None)
        return was_idle

    def retire(self, page: int) -> bool:
        """Mark a page without owner as idle and most recently used; return False if it has no hash."""
        if page not in self._by_page:
            return False
        self._idle[page] = None
        return True

    def revive(self, page: int) -> None:
        """Mark a page as owned again."""
        self._idle.pop(page, None)

    def evict(self) -> int:
        """Remove the hash of the least recently used idle page and return the page. There must be one."""
        page = next(iter(self._idle))
        hashed = self._by_page[page]
        if self.on_evict is not None and not hashed.partial and self._published.get(hashed.page_hash) is hashed:
            self.on_evict(hashed)
        self.remove(hashed)
        self.evicted += 1
        return page

    def clear(self) -> None:
        """Remove every hash."""
        for table in (self._by_page, self._published, self._idle):
            table.clear()

    def check(self, unowned: set[int]) -> None:
        """Assert that the state is consistent.

        Args:
            unowned: pages without owner that no pending copy reads.
        """
        assert set(self._idle) == unowned & set(self._by_page), "idle pages differ from hashed pages without owner"
        for page, hashed in self._by_page.items():
            assert hashed.page == page, "a page is listed under another number"
        for page_hash, hashed in self._published.items():
            assert hashed.page_hash == page_hash and self._by_page.get(hashed.page) is hashed, "a hash without its page"
