"""Pages that had to make room, in host buffers: a preempted sequence comes back without computing them again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from ferrum.cache.names import Name, NamedPage
from ferrum.cache.pages import PageTable
from ferrum.cache.prefix import PageKeeper
from ferrum.kernels.interface import Bytes, Kernels


class SwapKeeper:
    """Keeps pages from the moment they lose their place; see `PageKeeper`. A page that comes back leaves its buffer.

    Whether a page is copied or computed again is decided by what both have taken on this machine so far.

    Args:
        pages: whose keeper this becomes.
        kernels: whose pool it is.
        capacity: most bytes of the buffers; those that came first go first.
        recompute: seconds that computing a page again would take, as measured; 0 while nothing is known.
        below: asked for what is not here, and given what is proven.
    """

    def __init__(
        self,
        pages: PageTable,
        kernels: Kernels,
        capacity: int,
        recompute: Callable[[], float],
        below: PageKeeper | None = None,
    ) -> None:
        self._kernels = kernels
        self._capacity = capacity
        self._recompute = recompute
        self._below = below
        self._buffers: OrderedDict[tuple[str, Name], Bytes] = OrderedDict()
        self._bytes = 0
        self._copied, self._seconds = 0, 0.0
        pages.attach(self)

    def keep(self, group: str, named: NamedPage) -> None:
        """See `PageKeeper`."""
        if self._below is not None:
            self._below.keep(group, named)

    def evicted(self, group: str, named: NamedPage) -> None:
        """See `PageKeeper`."""
        size = self._kernels.page_bytes(group)
        if size > self._capacity or not self._pays(size):
            return
        begun = time.perf_counter()
        content = self._kernels.read_page(group, named.page)
        self._seconds += time.perf_counter() - begun
        self._copied += size
        replaced = self._buffers.pop((group, named.name), None)
        self._bytes += size - (0 if replaced is None else len(replaced))
        self._buffers[group, named.name] = content
        while self._bytes > self._capacity:
            self._bytes -= len(self._buffers.popitem(last=False)[1])

    def find(self, group: str, name: Name) -> Bytes | None:
        """See `PageKeeper`."""
        content = self._buffers.pop((group, name), None)
        if content is None:
            return None if self._below is None else self._below.find(group, name)
        self._bytes -= len(content)
        return content

    def fill(self, group: str, page: int, content: Bytes) -> None:
        """See `PageKeeper`."""
        self._kernels.write_page(group, page, content)

    def _pays(self, size: int) -> bool:
        """Whether a page's way out and back takes less time than to compute it; yes while one of both is unknown."""
        known = self._recompute()
        return not (known and self._copied) or 2 * size * self._seconds / self._copied < known
