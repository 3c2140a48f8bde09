"""Restores of pages from a KV tier into the pool, while other sequences compute.

The request that needs them waits; the engine's loop does not. Until pages arrive they belong to a placeholder sequence,
so they cannot be taken; then they are published and found like any other page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ferrum.cache.pool import HashedPage, PageHash

if TYPE_CHECKING:
    from ferrum.cache.page_table import PageTable


@dataclass(frozen=True, slots=True)
class WantedPage:
    """A page to be written from its copy.

    Attributes:
        group, page: the target.
        page_hash: its content hash.
        needed: the pages after it are of no use without it.
    """

    group: str
    page: int
    page_hash: PageHash
    needed: bool


class PageTier(Protocol):
    """Storage for copies of published pages, outside the pool."""

    def keep(self, group: str, hashed: HashedPage) -> None:
        """Schedule a copy of the page. It is made only if the page still has its hash then."""

    def evicted(self, group: str, hashed: HashedPage) -> None:
        """Copy the page now if it is to be kept: it is about to be overwritten."""

    def fetch(self, wanted: Sequence[WantedPage]) -> Future[Sequence[bool]]:
        """Write verified copies to these pages; the result says which pages were written.

        It may stop at the first needed page without a copy. No other thread touches the pages meanwhile.
        """


@dataclass(frozen=True, slots=True)
class _Restore:
    """Pages on their way, and the placeholder sequence that holds them and the pages before them."""

    held: str
    wanted: tuple[WantedPage, ...]
    written: Future[Sequence[bool]]


class Restores:
    """Pending restores of a page table.

    Attributes:
        active: restores that have not been collected.
        tier: source of the pages; None: no restores.
        on_ready: called, from any thread, when `collect` has something to do.
        asked_tokens, found_tokens: tokens looked for in the tier, and tokens found there.
        pages: number of restored pages, over all layer groups.
    """

    def __init__(self, table: PageTable) -> None:
        self.tier: PageTier | None = None
        self.on_ready: Callable[[], None] = lambda: None
        self.asked_tokens = self.found_tokens = self.pages = 0
        self._table = table
        # Found tokens are counted in a group without a window, which needs every page.
        ordered = sorted(table.groups, key=lambda group: group.window is not None)
        self._counted = next((group.name for group in ordered), None)
        self._begun = 0
        self.active: list[_Restore] = []
        self._page_hashes: Counter[PageHash] = Counter()

    def __contains__(self, page_hash: PageHash) -> bool:
        """Whether a page with this hash is on its way."""
        return page_hash in self._page_hashes

    def begin(self, page_hashes: Sequence[PageHash], count: int, fits: Callable[[str], bool]) -> bool:
        """Start to restore the pages after the `count` matched ones; some may arrive at once.

        Args:
            page_hashes: of the wanted pages.
            fits: whether the waiting sequence could run if it were the placeholder sequence of the given id.

        Returns:
            False if there is no room for the sequence: restored pages would be evicted before it runs.
        """
        if self.tier is None or count == len(page_hashes):
            return True
        self._begun += 1
        # Hold the matched pages, so that the restored ones do not evict them.
        self._table.adopt(held := f"restore {self._begun}", page_hashes, count)
        if not fits(held):
            self._table.release(held)
            return False
        size = self._table.page_size
        self.asked_tokens += (len(page_hashes) - count) * size
        room = min(self._table.free(group.name) for group in self._table.groups)
        end = min(len(page_hashes), count + room)
        reserved = self._table.reserve(held, end * size)
        assert reserved
        missing_pages = tuple(
            WantedPage(group.name, self._table.row(held, group.name)[index], page_hashes[index], group.window is None)
            for index in range(count, end)
            for group in self._table.groups
            if not self._table.has_page(group.name, page_hashes[index])
        )
        if not missing_pages:
            self._table.release(held)
            return True
        self.active.append(_Restore(held, missing_pages, self.tier.fetch(missing_pages)))
        self._page_hashes.update(each.page_hash for each in missing_pages)
        self.collect()
        if self.active and self.active[-1].held == held:
            self.active[-1].written.add_done_callback(lambda _: self.on_ready())
        return True

    def collect(self) -> None:
        """Publish the pages that have arrived."""
        for restore in [each for each in self.active if each.written.done()]:
            self.active.remove(restore)
            self._page_hashes -= Counter(each.page_hash for each in restore.wanted)
            self._settle(restore)

    def finish(self) -> None:
        """Wait for all pending restores."""
        for restore in self.active:
            restore.written.exception()
        self.collect()

    def _settle(self, restore: _Restore) -> None:
        failed = restore.written.exception() is not None
        missing = False
        written = [False] * len(restore.wanted) if failed else restore.written.result()
        for wanted, arrived in zip(restore.wanted, written, strict=True):
            missing |= wanted.needed and not arrived
            if arrived:
                self.pages += 1
                self._table.publish_page(wanted.group, wanted.page, wanted.page_hash)
                if wanted.group == self._counted and not missing:
                    self.found_tokens += self._table.page_size
        self._table.release(restore.held)
