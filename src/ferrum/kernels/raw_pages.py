"""`RawPages`: the pages of a KV pool as bytes, wherever they are. Kernels have them, and so have several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ferrum.cache.page_table import PageCopy
from ferrum.kernels.interface import Bytes


class RawPages(Protocol):
    """Pages that can be copied, read and written whole; see `Kernels` for the methods."""

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy whole pages, before a step writes to the targets. Repeating it changes nothing."""

    def page_bytes(self, group: str) -> int:
        """Return the bytes of a page of the group."""

    def read_page(self, group: str, page: int) -> Bytes:
        """Return the raw bytes of a page, u8 [page_bytes]."""

    def write_page(self, group: str, page: int, data: Bytes) -> None:
        """Write the bytes from `read_page` to a page."""
