"""Between the page table and the disk: copies proven pages behind the engine's back, and brings them back so."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures.thread import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final

from ferrum.cache.page_hashes import Name, NamedPage
from ferrum.cache.page_table import PageTable
from ferrum.cache.tiered_restore import Wanted
from ferrum.kernels.interface import Kernels
from ferrum.runtime.kv_tiers.page_files import PageFiles

_LOG: Final = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 10.0
"""How long `close` goes on writing what is due."""


class DiskKeeper:
    """Keeps the pages of one pool; see `PageKeeper`. Its threads read and fill the pool while the engine computes.

    A page that has its name after it was read has not been written to in between: it loses the name first.

    Args:
        pages: whose keeper this becomes.
        kernels: whose pool it is.
        files: where copies go.
    """

    def __init__(self, pages: PageTable, kernels: Kernels, files: PageFiles) -> None:
        self._pages = pages
        self._kernels = kernels
        self._files = files
        self._due: SimpleQueue[tuple[str, NamedPage] | None] = SimpleQueue()
        # Begun by the first page: a thread holds the pool, also that of an executor which nobody came to use.
        self._thread = threading.Thread(target=self._write, name="ferrum-pages", daemon=True)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="ferrum-restore")
        pages.attach(self)

    def keep(self, group: str, named: NamedPage) -> None:
        """See `PageKeeper`."""
        if self._thread.ident is None:
            try:
                self._thread.start()
            except RuntimeError as error:  # none to be had now; the next page asks again
                _LOG.warning("a page could not be kept on disk: %s", error)
                return
        self._due.put((group, named))

    def evicted(self, group: str, named: NamedPage) -> None:
        """See `PageKeeper`. It was due since it was proven, and it is too late now to wait for the disk."""

    def fetch(self, wanted: Sequence[Wanted]) -> Future[Sequence[bool]]:
        """See `PageKeeper`. What is damaged is not there."""
        try:
            self._reader.submit(int)  # begins the thread: pages that wait for one may be others' by then
        except RuntimeError as error:
            _LOG.warning("pages could not be read from disk: %s", error)
            failed: Future[Sequence[bool]] = Future()
            failed.set_exception(error)
            return failed
        return self._reader.submit(self._fill, wanted)

    def close(self) -> None:
        """Bring back what is on its way, write what is due, for a while, and end. Idempotent."""
        self._pages.restores.finish()
        self._reader.shutdown()
        self._due.put(None)
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        self._pages.attach(None)

    def _fill(self, wanted: Sequence[Wanted]) -> list[bool]:
        filled: list[bool] = []
        for each in wanted:
            content = self._files.get(_called(each.group, each.name), self._kernels.page_bytes(each.group))
            if content is not None:
                self._kernels.write_page(each.group, each.page, content)
            filled.append(content is not None)
            if each.needed and content is None:
                break
        return filled + [False] * (len(wanted) - len(filled))

    def _write(self) -> None:
        while (due := self._due.get()) is not None:
            try:
                self._write_page(*due)
            except Exception:  # noqa: BLE001 - one page less on disk; were this its end, all later ones would pile up
                _LOG.exception("a page could not be kept on disk")

    def _write_page(self, group: str, named: NamedPage) -> None:
        if self._pages.holds(group, named):
            content = self._kernels.read_page(group, named.page)
            if self._pages.holds(group, named):
                self._files.put(_called(group, named.name), content)


def _called(group: str, name: Name) -> bytes:
    """The name of a group's part of a page."""
    return hashlib.sha256(name + group.encode()).digest()
