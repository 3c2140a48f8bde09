"""Layer groups, and the pages of each: owners, the free list, content hashes, and pending copies."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from ferrum.core.config import PAGE_SIZE

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
        idle: hashed pages without owner.
        evicted: number of pages that lost their hash to make room.
        on_evict: called with a published page just before it is evicted, while its content is intact.
    """

    def __init__(self) -> None:
        self.evicted = 0
        self.on_evict: Callable[[HashedPage], None] | None = None
        self._by_page: dict[int, HashedPage] = {}
        self._published: dict[PageHash, HashedPage] = {}
        # Not a plain dict: finding the first key of one that is emptied from the front is not O(1).
        self.idle: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_page)

    def __contains__(self, page: int) -> bool:
        return page in self._by_page

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
        was_idle = hashed.page in self.idle
        self.idle.pop(hashed.page, None)
        return was_idle

    def evict(self) -> int:
        """Remove the hash of the least recently used idle page and return the page. There must be one."""
        page = next(iter(self.idle))
        hashed = self._by_page[page]
        if self.on_evict is not None and not hashed.partial and self._published.get(hashed.page_hash) is hashed:
            self.on_evict(hashed)
        self.remove(hashed)
        self.evicted += 1
        return page

    def clear(self) -> None:
        """Remove every hash."""
        for table in (self._by_page, self._published, self.idle):
            table.clear()

    def check(self, unowned: set[int]) -> None:
        """Assert that the state is consistent.

        Args:
            unowned: pages without owner that no pending copy reads.
        """
        assert set(self.idle) == unowned & set(self._by_page), "idle pages differ from hashed pages without owner"
        for page, hashed in self._by_page.items():
            assert hashed.page == page, "a page is listed under another number"
        for page_hash, hashed in self._published.items():
            assert hashed.page_hash == page_hash and self._by_page.get(hashed.page) is hashed, "a hash without its page"


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers that share a page row.

    Attributes:
        name: unique within a table.
        num_pages: size of the group's pool.
        page_size: tokens per page.
        window: a query at position p sees the keys k with p - window < k <= p; None: all k <= p.
    """

    name: str
    num_pages: int
    page_size: int
    window: int | None = None

    def pages(self, tokens: int) -> int:
        """Return the number of pages for `tokens` tokens."""
        return -(-tokens // self.page_size)

    def unseen(self, position: int) -> int:
        """Return the number of leading pages that no query from `position` on sees."""
        return 0 if self.window is None else max(0, position - self.window + 1) // self.page_size

    def most_pages(self, length: int, step: int, slack: int) -> int:
        """Return the largest number of pages of a sequence that grows to a length.

        Args:
            length: number of tokens.
            step: largest number of tokens between two commits.
            slack: tokens that a window keeps more than the next query sees.
        """
        if self.window is None:
            return self.pages(length)
        # The kept tokens may begin and end in the middle of a page.
        return self.pages(min(length, self.window + slack + step + self.page_size))


def capacity_tokens(groups: Sequence[PageGroup]) -> int:
    """Return the tokens that the pools hold; groups with a window count only if all have one."""
    unbounded = [group for group in groups if group.window is None]
    return min(group.num_pages * group.page_size for group in unbounded or groups)


@dataclass(frozen=True, slots=True)
class PageCopy:
    """One page of the group to copy, whole and raw, before the next step writes."""

    group: str
    source: int
    target: int


class PagePool:
    """Reference counts, free list, hashes and pending copies of `num_pages` pages, all O(1) per page.

    The free list is a stack: the page dropped last is taken first, since it may still be in the CPU cache. A hashed
    page is not put there when its last owner drops it; it stays as it is until all others are taken.
    """

    def __init__(self, num_pages: int, hashes: HashIndex | None = None) -> None:
        self.num_pages = num_pages
        self.hashes = HashIndex() if hashes is None else hashes
        self.changes = 0
        self.copies: dict[int, int] = {}  # sources of pending copies, by target
        self.clear()

    def clear(self) -> None:
        """Free every page and remove every hash. Safe after an interrupt that left the state half written."""
        self.hashes.clear()
        self.shared = 0
        self._owners = [0] * self.num_pages
        self._stack = list(range(self.num_pages - 1, -1, -1))
        # How many pending copies read a source: it must not be handed out meanwhile.
        self.copies.clear()
        self._readers: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Number of pages that can be taken, including idle hashed pages."""
        return len(self._stack) + len(self.hashes.idle)

    def is_fixed(self, page: int) -> bool:
        """Return whether the page must not be written to: it has several owners, or a hash."""
        return self._owners[page] > 1 or page in self.hashes

    def owned_by(self, pages: Iterable[int]) -> int:
        """Return how many pages have no owners but the given ones, each page listed once for each of them."""
        return sum(self._owners[page] == count for page, count in Counter(pages).items())

    def take(self) -> int:
        """Return a free page, now with one owner. There must be one."""
        self.changes += 1
        page = self._stack.pop() if self._stack else self.hashes.evict()
        self._owners[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add an owner."""
        self.changes += 1
        self._owners[page] += 1
        self.shared += self._owners[page] == 2
        self.hashes.idle.pop(page, None)

    def drop(self, page: int) -> None:
        """Remove an owner; free the page if it has none and no pending copy reads it."""
        self.changes += 1
        self._owners[page] -= 1
        self.shared -= self._owners[page] == 1
        if self._owners[page] > 0:
            return
        source = self.copies.pop(page, None)
        if source is not None:
            self._unread(source)
        if page not in self._readers:
            self._free(page)

    def replace(self, page: int) -> int:
        """Replace one owner's fixed page by a new page, to be copied from it; return the new page."""
        target = self.take()
        # A page whose own copy is pending holds nothing yet: read its source instead.
        source = self.copies.get(page, page)
        self.copies[target] = source
        self._readers[source] = self._readers.get(source, 0) + 1
        self.drop(page)
        return target

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """Return the pending (target, source) pairs; from now on they count as made."""
        copies = tuple(self.copies.items())
        self.copies.clear()
        for _, source in copies:
            self._unread(source)
        return copies

    # Hashes

    def adopt(self, page_hash: PageHash) -> int:
        """Return the page with this hash, with one more owner. There must be one."""
        page = self.hashes.find(page_hash)
        assert page is not None, "matched before"
        self.share(page)
        return page

    def publish(self, hashed: HashedPage) -> bool:
        """Let a page be found by its hash, unless another page is; return whether it now is."""
        if not self.hashes.publish(hashed):
            self.remove_hash(hashed)
        return self.hashes.holds(hashed)

    def remove_hash(self, hashed: HashedPage) -> None:
        """Remove a page's hash."""
        if self.hashes.remove(hashed):
            self._stack.append(hashed.page)

    def check(self, owners: list[int]) -> None:
        """Assert that the state agrees with the owners counted from outside, one count per page."""
        assert self._owners == owners, "reference counts differ from the rows"
        assert self.shared == sum(count > 1 for count in owners), "the count of shared pages is off"
        assert len(self._stack) == len(set(self._stack)), "a page is free twice"
        unowned = {page for page, count in enumerate(owners) if count == 0 and page not in self._readers}
        self.hashes.check(unowned)
        unhashed = {page for page in unowned if page not in self.hashes}
        assert set(self._stack) == unhashed, "the free list differs from the pages without owner and hash"
        readers: dict[int, int] = {}
        for target, source in self.copies.items():
            assert owners[target] > 0, "a copy to a page without owner"
            assert source not in self.copies, "a copy of a page that is itself to be copied"
            readers[source] = readers.get(source, 0) + 1
        assert self._readers == readers, "pages are held back for copies that are not pending"

    def _unread(self, source: int) -> None:
        self._readers[source] -= 1
        if not self._readers[source]:
            del self._readers[source]
            if not self._owners[source]:
                self._free(source)

    def _free(self, page: int) -> None:
        """Make a page without owner idle, most recently used, if it has a hash; else free."""
        if page in self.hashes:
            self.hashes.idle[page] = None
        else:
            self._stack.append(page)


# ---- Room in the pools: how many pages sequences need, and whether the free ones are enough ----


class Room:
    """The pools of all groups, with questions about room.

    Args:
        groups: with distinct names; none if no layer stores anything per token. Shared prefixes need one page size.
        max_draft: longest draft. A window group keeps this many tokens and one page more than the next query sees, so
            that a truncation by a draft always succeeds.

    Attributes:
        pools: of each group.
        index: of a group, by name.
        page_size: tokens per page, of the first group.
        tick: returns a number that no earlier call has returned. One for all sequences: an id that is released and used
            again never repeats a number.
    """

    def __init__(self, groups: Iterable[PageGroup], max_draft: int) -> None:
        self.groups = tuple(groups)
        self.pools = tuple(PagePool(group.num_pages) for group in self.groups)
        self.index = {group.name: index for index, group in enumerate(self.groups)}
        self.page_size = next((group.page_size for group in self.groups), PAGE_SIZE)
        self.tick: Callable[[], int] = count(1).__next__
        self._max_draft = max_draft
        assert len(self.index) == len(self.groups), "groups need distinct names"
        assert all(group.num_pages >= 0 and group.page_size > 0 for group in self.groups)

    def fits_empty(self, length: int, step: int) -> bool:
        """Return whether the empty pool holds a sequence of `length` tokens that grows in steps of `step`."""
        return all(group.most_pages(length, step, self.slack(group)) <= group.num_pages for group in self.groups)

    def growth(self, limit: int) -> int:
        """Return by how many tokens, up to `limit`, a sequence may grow in one step.

        The result is below `limit` if a window group then holds a sequence of any length, and otherwise would not; it
        is never less than a page.
        """
        for group in self.groups:
            if group.window is not None:
                room = (group.num_pages - 1) * group.page_size - group.window - self.slack(group)
                limit = min(limit, room) if room >= group.page_size else limit
        return limit

    def slack(self, group: PageGroup) -> int:
        """Return by how many tokens a window group keeps more than the next query sees."""
        return self._max_draft + group.page_size
