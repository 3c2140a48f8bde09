"""The disk tier: writes published pages behind the engine, and restores them while the engine computes.

Which pages to restore is decided in `cache/tiered_restore.py`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures.thread import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import numpy as np

from ferrum.cache.page_table import PageTable
from ferrum.cache.pool import HashedPage, PageHash
from ferrum.cache.tiered_restore import PageTier, WantedPage
from ferrum.core.errors import ConfigError
from ferrum.kernels.interface import RawPages
from ferrum.kernels.operations import Bytes

# ---- KV pages in files of a directory: verified on reading, and limited in total bytes ----
#
# A file's name is its content's hash (`cache/page_hashes.py`), which includes model, formats and numerics. So processes
# that compute the same share files. A file is written under a temporary name and then renamed, so a crash leaves no
# partial page. A page is used only if its header, its size and the checksum of its content match.

_MAGIC: Final = b"ferrum page 1\n"
_SUFFIX: Final = ".page"
_NAME_BYTES: Final = 32
_HEADER: Final = len(_MAGIC) + _NAME_BYTES + 8 + 4
"""Magic, page hash, content bytes and their CRC-32, little-endian."""

_SHRINK_TO: Final = 0.9
"""Fraction of the capacity left after deleting files, so that not every new page causes a scan of the directory."""

_RESCAN_AFTER: Final = 1 / 32
"""Fraction of the capacity written between two scans for files of other processes."""


class PageFiles:
    """Page files in a directory that any number of processes may share.

    Args:
        directory: created if missing.
        capacity: maximum bytes of all files; the least recently used are deleted first. Each of several writing
            processes may exceed it by a 32nd before it sees the others' files.

    Raises:
        ConfigError: the directory cannot be created or read.
    """

    def __init__(self, directory: Path, capacity: int) -> None:
        self._directory = directory
        self._capacity = capacity
        self._failing = False
        # Unique: other writers, also in this process, may write the same page at the same time.
        self._temporary = f".{os.getpid()}-{secrets.token_hex(4)}"
        try:
            # Keys and values reveal parts of the prompts that they were computed from.
            directory.mkdir(0o700, parents=True, exist_ok=True)
            self._bytes = sum(size for _, size, _ in self._files())
            self._unscanned = 0
        except OSError as error:
            raise ConfigError(f"cannot use {directory}: {error}", param="prefix_cache_dir") from None

    def put(self, name: bytes, content: Bytes) -> None:
        """Write a page, replacing an existing file, which was missing or damaged. The first failure is logged.

        Args:
            name: 32 bytes.
            content: u8 [n].
        """
        path = self._path(name)
        temporary = path.with_suffix(self._temporary)
        header = _MAGIC + name + len(content).to_bytes(8, "little") + zlib.crc32(content.data).to_bytes(4, "little")
        try:
            # Readable by the owner only, since prompts can be inferred from pages; the directory may be open.
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(header)
                file.write(content.data)
            temporary.replace(path)
        except OSError as error:
            if not self._failing:
                _LOG.warning("cannot write pages of the prefix cache: %s", error)
            self._failing = True
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            return
        self._failing = False
        # A replaced file is counted twice until the next scan.
        self._bytes += _HEADER + len(content)
        self._unscanned += _HEADER + len(content)
        if self._bytes > self._capacity or self._unscanned > _RESCAN_AFTER * self._capacity:
            self._shrink()

    def get(self, name: bytes, size: int | None = None) -> Bytes | None:
        """Return the page of that name, u8 [size], or None. A damaged file is deleted. No size: that of the file."""
        path = self._path(name)
        try:
            data = np.fromfile(path, np.uint8)
        except OSError:
            return None
        content = data[_HEADER:]
        size = len(content) if size is None else size
        header = _MAGIC + name + size.to_bytes(8, "little") + zlib.crc32(content.data).to_bytes(4, "little")
        if len(content) != size or data[:_HEADER].tobytes() != header:
            _LOG.warning("%s is damaged and was deleted; its page is recomputed", path.name)
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        with suppress(OSError):
            os.utime(path)  # marks it as used now
        return content

    def _path(self, name: bytes) -> Path:
        assert len(name) == _NAME_BYTES
        return self._directory / (name.hex() + _SUFFIX)

    def _files(self) -> list[tuple[float, int, str]]:
        """Return time of last use, bytes and path of each page, temporary files included."""
        files = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if len(Path(entry.name).stem) == 2 * _NAME_BYTES:
                    with suppress(OSError):  # another process may have deleted it
                        state = entry.stat()
                        files.append((state.st_mtime, state.st_size, entry.path))
        return files

    def _shrink(self) -> None:
        """Scan the directory; if it is too large, delete the least recently used files."""
        try:
            files = sorted(self._files())
        except OSError:
            return
        self._bytes, self._unscanned = sum(size for _, size, _ in files), 0
        if self._bytes <= self._capacity:
            return
        for _, size, path in files:
            if self._bytes <= _SHRINK_TO * self._capacity:
                return
            with suppress(OSError):
                os.unlink(path)  # noqa: PTH108 - a path from scandir
                self._bytes -= size


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
