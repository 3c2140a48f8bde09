"""The disk tier: writes published pages behind the engine, and restores them while the engine computes.

The files are in `page_files.py`; which pages to restore is decided in `cache/tiered_restore.py`.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures.thread import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final

from ferrum.cache.page_table import PageTable
from ferrum.cache.pool import HashedPage, PageHash
from ferrum.cache.tiered_restore import PageTier, WantedPage
from ferrum.kernels.interface import RawPages
from ferrum.runtime.kv_tiers.page_files import PageFiles

_LOG: Final = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 10.0
"""Seconds that `close` spends on writing queued pages."""


class DiskTier(PageTier):
    """A disk tier of one pool. Its threads read and fill the pool while the engine computes.

    A page that still has its hash after it was read has not been changed meanwhile: a change removes the hash first.

    Args:
        pages: the page table to attach to.
        pool: the pages' contents.
        files: where copies go.
    """

    def __init__(self, pages: PageTable, pool: RawPages, files: PageFiles) -> None:
        self._pages = pages
        self._pool = pool
        self._files = files
        self._queue: SimpleQueue[tuple[str, HashedPage] | None] = SimpleQueue()
        # Started by the first page: a thread keeps the pool alive, also that of an unused executor.
        self._thread = threading.Thread(target=self._write, name="ferrum-pages", daemon=True)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="ferrum-restore")
        pages.attach(self)

    def keep(self, group: str, hashed: HashedPage) -> None:
        if self._thread.ident is None:
            try:
                self._thread.start()
            except RuntimeError as error:  # no thread available; the next page tries again
                _LOG.warning("cannot write a page to disk: %s", error)
                return
        self._queue.put((group, hashed))

    def evicted(self, group: str, hashed: HashedPage) -> None:
        """Do nothing: the page was queued when it was published, and it is too late to wait for the disk."""

    def fetch(self, wanted: Sequence[WantedPage]) -> Future[Sequence[bool]]:
        try:
            self._reader.submit(int)  # starts the thread now: waiting pages might be reassigned until then
        except RuntimeError as error:
            _LOG.warning("cannot read pages from disk: %s", error)
            failed: Future[Sequence[bool]] = Future()
            failed.set_exception(error)
            return failed
        return self._reader.submit(self._fill, wanted)

    def close(self) -> None:
        """Finish restores, write queued pages for a limited time, and end. Idempotent."""
        self._pages.restores.finish()
        self._reader.shutdown()
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        self._pages.attach(None)

    def _fill(self, wanted: Sequence[WantedPage]) -> list[bool]:
        filled: list[bool] = []
        for each in wanted:
            content = self._files.get(_file_name(each.group, each.page_hash), self._pool.page_bytes(each.group))
            if content is not None:
                self._pool.write_page(each.group, each.page, content)
            filled.append(content is not None)
            if each.needed and content is None:
                break
        return filled + [False] * (len(wanted) - len(filled))

    def _write(self) -> None:
        while (queued := self._queue.get()) is not None:
            try:
                self._write_page(*queued)
            except Exception:  # noqa: BLE001 - the thread must go on, or later pages would pile up
                _LOG.exception("cannot write a page to disk")

    def _write_page(self, group: str, hashed: HashedPage) -> None:
        if self._pages.holds(group, hashed):
            content = self._pool.read_page(group, hashed.page)
            if self._pages.holds(group, hashed):
                self._files.put(_file_name(group, hashed.page_hash), content)


def _file_name(group: str, name: PageHash) -> bytes:
    """Return the file name of a group's part of a page."""
    return hashlib.sha256(name + group.encode()).digest()
