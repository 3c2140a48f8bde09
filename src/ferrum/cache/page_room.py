"""Room in the pool: how many pages sequences need, and whether the free ones are enough. Host integers only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from ferrum.cache.pool import PageGroup, PagePool
from ferrum.core.config import PAGE_SIZE


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
