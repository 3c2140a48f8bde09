"""The pages of one layer group: who is free, how many own each, and which copies are due."""

from __future__ import annotations


class PagePool:
    """Reference counts, the free list and the pending copies of `num_pages` pages, all O(1) per page.

    The free list is a stack: the page dropped last is taken first, which is deterministic and kind to the memory cache.
    A cache of unreferenced pages belongs between `drop` and `take`, the only two places where a page changes hands.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.shared = 0
        self._owners = [0] * num_pages
        self._stack = list(range(num_pages - 1, -1, -1))
        # Copies due, by target, and how many of them read a source: it must not be handed out meanwhile.
        self._copies: dict[int, int] = {}
        self._readers: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._stack)

    def is_shared(self, page: int) -> bool:
        """Whether the page has more than one owner."""
        return self._owners[page] > 1

    def take(self) -> int:
        """A free page, now with one owner. There must be one."""
        page = self._stack.pop()
        self._owners[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add an owner."""
        self._owners[page] += 1
        self.shared += self._owners[page] == 2

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
            self._stack.append(page)

    def replace(self, page: int) -> int:
        """Give one owner of a shared page a page of its own, whose copy falls due."""
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

    def check(self, owners: list[int]) -> None:
        """Assert that the books agree with the owners counted from outside, one count per page."""
        assert self._owners == owners, "reference counts differ from the rows"
        assert self.shared == sum(count > 1 for count in owners), "the count of shared pages is off"
        assert len(self._stack) == len(set(self._stack)), "a page is free twice"
        idle = {page for page, count in enumerate(owners) if count == 0 and page not in self._readers}
        assert set(self._stack) == idle, "the free list differs from the unowned pages"
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
                self._stack.append(source)
