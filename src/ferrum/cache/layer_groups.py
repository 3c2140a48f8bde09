"""Layer groups of the KV pool, as the page table sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
