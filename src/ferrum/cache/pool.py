"""The pages of one layer group: who is free, how many own each, which are kept by name, and which copies are due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ferrum.cache.page_hashes import Name, NamedPage, PageNames


class PagePool:
    """Reference counts, the free list, names and the pending copies of `num_pages` pages, all O(1) per page.

    The free list is a stack: the page dropped last is taken first, which is deterministic and kind to the memory cache.
    A page with a name is not put there when its last owner drops it, but stays as it is until all others are taken.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.names = PageNames()
        self.clear()

    def clear(self) -> None:
        """Let every page be free and without a name, whatever the books say: an interrupt leaves them half written."""
        self.names.clear()
        self.shared = 0
        self._owners = [0] * self.num_pages
        self._stack = list(range(self.num_pages - 1, -1, -1))
        # Copies due, by target, and how many of them read a source: it must not be handed out meanwhile.
        self._copies: dict[int, int] = {}
        self._readers: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Number of pages that can be taken, those that would lose their name for it included."""
        return len(self._stack) + self.names.idle

    def is_fixed(self, page: int) -> bool:
        """Whether the page may not be written to: it has more than one owner, or a name."""
        return self._owners[page] > 1 or page in self.names

    def is_alone(self, page: int) -> bool:
        """Whether the page has one owner."""
        return self._owners[page] == 1

    def owned_by(self, pages: Iterable[int]) -> int:
        """How many pages these are all the owners of, each page named once for each of them."""
        return sum(self._owners[page] == count for page, count in Counter(pages).items())

    def is_written(self, page: int) -> bool:
        """Whether the page holds what it is to hold: it waits for no copy."""
        return page not in self._copies

    def take(self) -> int:
        """A free page, now with one owner. There must be one."""
        page = self._stack.pop() if self._stack else self.names.evict()
        self._owners[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add an owner."""
        self._owners[page] += 1
        self.shared += self._owners[page] == 2
        self.names.revive(page)

    def drop(self, page: int) -> None:
        """Remove an owner; the page is free once it has none and no copy reads it."""
        self._owners[page] -= 1
        self.shared -= self._owners[page] == 1
        if self._owners[page] > 0:
            return
        source = self._copies.pop(page, None)
        if source is not None:
            self._unread(source)
        if page not in self._readers:
            self._let_go(page)

    def replace(self, page: int) -> int:
        """Give one owner of a fixed page a page of its own, whose copy falls due."""
        target = self.take()
        # A page that is itself still to be copied holds nothing yet: read where it will come from.
        source = self._copies.get(page, page)
        self._copies[target] = source
        self._readers[source] = self._readers.get(source, 0) + 1
        self.drop(page)
        return target

    def take_copies(self) -> tuple[tuple[int, int], ...]:
        """The (target, source) pairs due; from now on they count as made."""
        copies = tuple(self._copies.items())
        self._copies.clear()
        for _, source in copies:
            self._unread(source)
        return copies

    # Names

    def adopt(self, name: Name) -> int:
        """The page of that name, with one more owner. There must be one."""
        page = self.names.find(name)
        assert page is not None, "matched before"
        self.share(page)
        return page

    def prove(self, named: NamedPage) -> bool:
        """Let a named page be found by its name, unless another one is; whether it now is."""
        if not self.names.prove(named):
            self.forget(named)
        return self.names.holds(named)

    def forget(self, named: NamedPage) -> None:
        """Take a page's name away."""
        if self.names.forget(named):
            self._stack.append(named.page)

    def check(self, owners: list[int]) -> None:
        """Assert that the books agree with the owners counted from outside, one count per page."""
        assert self._owners == owners, "reference counts differ from the rows"
        assert self.shared == sum(count > 1 for count in owners), "the count of shared pages is off"
        assert len(self._stack) == len(set(self._stack)), "a page is free twice"
        unowned = {page for page, count in enumerate(owners) if count == 0 and page not in self._readers}
        self.names.check(unowned)
        nameless = {page for page in unowned if page not in self.names}
        assert set(self._stack) == nameless, "the free list differs from the pages without owner and name"
        readers: dict[int, int] = {}
        for target, source in self._copies.items():
            assert owners[target] > 0, "a copy to a page that nobody owns"
            assert source not in self._copies, "a copy of a page that is itself to be copied"
            readers[source] = readers.get(source, 0) + 1
        assert self._readers == readers, "pages are held back for copies that are not due"

    def _unread(self, source: int) -> None:
        self._readers[source] -= 1
        if not self._readers[source]:
            del self._readers[source]
            if not self._owners[source]:
                self._let_go(source)

    def _let_go(self, page: int) -> None:
        """A page that nobody needs: idle under its name, or free."""
        if not self.names.retire(page):
            self._stack.append(page)
