"""The swap tier: evicted pages in host buffers, so that a preempted sequence resumes without recomputing them."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from statistics import median
from typing import Final

from ferrum.cache.page_table import PageTable
from ferrum.cache.pool import HashedPage, PageHash
from ferrum.cache.tiered_restore import PageTier, WantedPage
from ferrum.kernels.interface import RawPages
from ferrum.kernels.operations import Bytes

WINDOW: Final = 15
"""Recent copies whose median time is the estimate of a copy."""

AGAIN: Final = 64
"""One of this many pages is copied even if copies do not pay, since the machine may have become faster."""


class SwapTier(PageTier):
    """A tier of host buffers that holds pages from their eviction until they are restored.

    A page is copied while copying it out and back takes less time than recomputing it, as measured on this machine.

    Args:
        pages: the page table to attach to.
        pool: the pages' contents.
        capacity: maximum bytes of the buffers; the oldest are dropped first.
        recompute: returns the measured seconds to recompute a page; 0 while unknown.
        below: the next tier, which gets published pages and requests for missing ones.
        clock: seconds.
    """

    def __init__(
        self,
        pages: PageTable,
        pool: RawPages,
        capacity: int,
        recompute: Callable[[], float],
        below: PageTier | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._pool = pool
        self._capacity = capacity
        self._recompute = recompute
        self._below = below
        self._clock = clock
        self._buffers: OrderedDict[tuple[str, PageHash], Bytes] = OrderedDict()
        self._bytes = 0
        self._rates: deque[float] = deque(maxlen=WINDOW)
        self._refused = 0
        pages.attach(self)

    def keep(self, group: str, hashed: HashedPage) -> None:
        if self._below is not None:
            self._below.keep(group, hashed)

    def evicted(self, group: str, hashed: HashedPage) -> None:
        size = self._pool.page_bytes(group)
        if size > self._capacity or not self._pays(size):
            return
        start = self._clock()
        try:
            content = self._pool.read_page(group, hashed.page)
        except MemoryError:  # less memory than the option promised: recompute the page
            return
        self._rates.append((self._clock() - start) / size)
        replaced = self._buffers.pop((group, hashed.page_hash), None)
        self._bytes += size - (0 if replaced is None else len(replaced))
        self._buffers[group, hashed.page_hash] = content
        while self._bytes > self._capacity:
            self._bytes -= len(self._buffers.popitem(last=False)[1])

    def fetch(self, wanted: Sequence[WantedPage]) -> Future[Sequence[bool]]:
        filled = [self._fill(each) for each in wanted]
        missing = [index for index, there in enumerate(filled) if not there]
        whole: Future[Sequence[bool]] = Future()
        if self._below is None or not missing:
            whole.set_result(filled)
            return whole

        def add(below: Future[Sequence[bool]]) -> None:
            if below.exception() is None:
                for index, there in zip(missing, below.result(), strict=True):
                    filled[index] = there
            whole.set_result(filled)

        self._below.fetch([wanted[index] for index in missing]).add_done_callback(add)
        return whole

    def _fill(self, wanted: WantedPage) -> bool:
        content = self._buffers.pop((wanted.group, wanted.page_hash), None)
        if content is None:
            return False
        self._bytes -= len(content)
        self._pool.write_page(wanted.group, wanted.page, content)
        return True

    def _pays(self, size: int) -> bool:
        """Whether copying a page out and back takes less time than recomputing it; True while either is unknown."""
        recompute = self._recompute()
        if not (recompute and self._rates) or 2 * size * median(self._rates) < recompute:
            return True
        self._refused += 1
        return self._refused % AGAIN == 0
