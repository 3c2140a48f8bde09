"""Pages that had to make room, in host buffers: a preempted sequence comes back without computing them again."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from statistics import median
from typing import Final

from ferrum.cache.page_hashes import Name, NamedPage
from ferrum.cache.page_table import PageTable
from ferrum.cache.tiered_restore import PageKeeper, Wanted
from ferrum.kernels.interface import Bytes, Kernels

WINDOW: Final = 15
"""Copies that tell what a copy takes: their median, for anything may hold up a single one."""

AGAIN: Final = 64
"""Of so many pages that were not worth a copy one is copied all the same: the machine may have become faster."""


@dataclass(slots=True, eq=False)
class _Departure:
    """A page made room: whether it was asked for after that."""

    page: tuple[str, Name]
    asked: bool = False


class Returns:
    """How many of the pages that had to make room are asked for again, whether they were copied or not.

    A page that comes and goes is counted each time it goes: each time there was a copy to make.

    Args:
        most: times that are remembered, the last ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._departures: deque[_Departure] = deque()
        self._last: dict[tuple[str, Name], _Departure] = {}
        self._count = 0

    @property
    def share(self) -> float:
        """The part of them, above 0 and at most 1: all, as long as nothing is known."""
        return (self._count + 1) / (len(self._departures) + 1)

    def left(self, page: tuple[str, Name]) -> None:
        """The page makes room."""
        self._last[page] = _Departure(page)
        self._departures.append(self._last[page])
        if len(self._departures) > self._most:
            oldest = self._departures.popleft()
            self._count -= oldest.asked
            if self._last[oldest.page] is oldest:
                del self._last[oldest.page]

    def asked(self, page: tuple[str, Name]) -> None:
        """Somebody wants the page."""
        departure = self._last.get(page)
        if departure is not None and not departure.asked:
            departure.asked = True
            self._count += 1


class SwapKeeper:
    """Keeps pages from the moment they lose their place; see `PageKeeper`. A page that comes back leaves its buffer.

    Whether a page is copied or computed again is decided by what both have taken on this machine so far, and by how
    many of the pages that made room were asked for again: most of those of answers that have ended never are.

    Args:
        pages: whose keeper this becomes.
        kernels: whose pool it is.
        capacity: most bytes of the buffers; those that came first go first.
        recompute: seconds that computing a page again would take, as measured; 0 while nothing is known.
        below: asked for what is not here, and given what is proven.
        clock: seconds.
    """

    def __init__(
        self,
        pages: PageTable,
        kernels: Kernels,
        capacity: int,
        recompute: Callable[[], float],
        below: PageKeeper | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._kernels = kernels
        self._capacity = capacity
        self._recompute = recompute
        self._below = below
        self._clock = clock
        self._buffers: OrderedDict[tuple[str, Name], Bytes] = OrderedDict()
        self._bytes = 0
        self._rates: deque[float] = deque(maxlen=WINDOW)
        self._refused = 0
        # As many as would still be here, had all been copied.
        self._returns = Returns(max(1, capacity // min(kernels.page_bytes(group.name) for group in pages.groups)))
        pages.attach(self)

    def keep(self, group: str, named: NamedPage) -> None:
        """See `PageKeeper`."""
        if self._below is not None:
            self._below.keep(group, named)

    def evicted(self, group: str, named: NamedPage) -> None:
        """See `PageKeeper`."""
        size = self._kernels.page_bytes(group)
        pays = self._pays(size)
        self._returns.left((group, named.name))
        if size > self._capacity or not pays:
            return
        begun = self._clock()
        try:
            content = self._kernels.read_page(group, named.page)
        except MemoryError:  # less of it than the option says: the page is computed again
            return
        self._rates.append((self._clock() - begun) / size)
        replaced = self._buffers.pop((group, named.name), None)
        self._bytes += size - (0 if replaced is None else len(replaced))
        self._buffers[group, named.name] = content
        while self._bytes > self._capacity:
            self._bytes -= len(self._buffers.popitem(last=False)[1])

    def fetch(self, wanted: Sequence[Wanted]) -> Future[Sequence[bool]]:
        """See `PageKeeper`. What is in the buffers is there at once; for all else those below take their time."""
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

    def _fill(self, wanted: Wanted) -> bool:
        self._returns.asked((wanted.group, wanted.name))
        content = self._buffers.pop((wanted.group, wanted.name), None)
        if content is None:
            return False
        self._bytes -= len(content)
        self._kernels.write_page(wanted.group, wanted.page, content)
        return True

    def _pays(self, size: int) -> bool:
        """Whether a page's way out, and back if it is asked for, takes less time than to compute it then.

        Yes while one of both is unknown.
        """
        known, share = self._recompute(), self._returns.share
        if not (known and self._rates) or (1 + share) * size * median(self._rates) < share * known:
            return True
        self._refused += 1
        return self._refused % AGAIN == 0
