"""The swap tier: evicted pages in host buffers, so that a preempted sequence resumes without recomputing them."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from statistics import median
from typing import Final

from ferrum.cache.page_hashes import HashedPage, PageHash
from ferrum.cache.page_table import PageTable
from ferrum.cache.tiered_restore import PageTier, WantedPage
from ferrum.kernels.interface import Bytes, Kernels

WINDOW: Final = 15
"""Recent copies whose median time is the estimate of a copy."""

AGAIN: Final = 64
"""One of this many pages is copied even if copies do not pay, since the machine may have become faster."""


@dataclass(slots=True, eq=False)
class _Eviction:
    """An evicted page, and whether it was requested after that."""

    page: tuple[str, PageHash]
    asked: bool = False


class ReuseHistory:
    """The share of evicted pages that are requested again, copied or not.

    A page that is evicted several times counts each time, since each time there was a copy to make.

    Args:
        size: number of evictions remembered.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._evictions: deque[_Eviction] = deque()
        self._last: dict[tuple[str, PageHash], _Eviction] = {}
        self._count = 0

    @property
    def share(self) -> float:
        """The share, above 0 and at most 1; 1 while nothing is known."""
        return (self._count + 1) / (len(self._evictions) + 1)

    def left(self, page: tuple[str, PageHash]) -> None:
        """Record that a page is evicted."""
        self._last[page] = _Eviction(page)
        self._evictions.append(self._last[page])
        if len(self._evictions) > self._size:
            oldest = self._evictions.popleft()
            self._count -= oldest.asked
            if self._last[oldest.page] is oldest:
                del self._last[oldest.page]

    def asked(self, page: tuple[str, PageHash]) -> None:
        """Record that a page is requested."""
        eviction = self._last.get(page)
        if eviction is not None and not eviction.asked:
            eviction.asked = True
            self._count += 1


class SwapTier:
    """A tier of host buffers that holds pages from their eviction until they are restored.

    A page is copied if copying costs less time than recomputing, by measurements on this machine and by the share of
    evicted pages that are requested again: most pages of finished requests never are.

    Args:
        pages: the page table to attach to.
        kernels: owner of the pool.
        capacity: maximum bytes of the buffers; the oldest are dropped first.
        recompute: returns the measured seconds to recompute a page; 0 while unknown.
        below: the next tier, which gets published pages and requests for missing ones.
        clock: seconds.
    """

    def __init__(
        self,
        pages: PageTable,
        kernels: Kernels,
        capacity: int,
        recompute: Callable[[], float],
        below: PageTier | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._kernels = kernels
        self._capacity = capacity
        self._recompute = recompute
        self._below = below
        self._clock = clock
        self._buffers: OrderedDict[tuple[str, PageHash], Bytes] = OrderedDict()
        self._bytes = 0
        self._rates: deque[float] = deque(maxlen=WINDOW)
        self._refused = 0
        # As many as the buffers would hold if every page were copied.
        self._history = ReuseHistory(max(1, capacity // min(kernels.page_bytes(group.name) for group in pages.groups)))
        pages.attach(self)

    def keep(self, group: str, hashed: HashedPage) -> None:
        if self._below is not None:
            self._below.keep(group, hashed)

    def evicted(self, group: str, hashed: HashedPage) -> None:
        size = self._kernels.page_bytes(group)
        pays = self._pays(size)
        self._history.left((group, hashed.page_hash))
        if size > self._capacity or not pays:
            return
        begun = self._clock()
        try:
            content = self._kernels.read_page(group, hashed.page)
        except MemoryError:  # less memory than the option promised: recompute the page
            return
        self._rates.append((self._clock() - begun) / size)
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
        self._history.asked((wanted.group, wanted.page_hash))
        content = self._buffers.pop((wanted.group, wanted.page_hash), None)
        if content is None:
            return False
        self._bytes -= len(content)
        self._kernels.write_page(wanted.group, wanted.page, content)
        return True

    def _pays(self, size: int) -> bool:
        """Whether copying a page out, and back with the measured probability, takes less time than recomputing it.

        True while either time is unknown.
        """
        known, share = self._recompute(), self._history.share
        if not (known and self._rates) or (1 + share) * size * median(self._rates) < share * known:
            return True
        self._refused += 1
        return self._refused % AGAIN == 0
