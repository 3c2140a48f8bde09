"""The page table as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Series
from typing import Protocol

from ferrum.cache.next_tokens import NextTokens
from ferrum.cache.page_hashes import PartialPage
from ferrum.cache.pool import PageHash
from ferrum.cache.tiered_restore import Restores
from ferrum.core.snapshots import PrefixCounts


class Pages(Protocol):
    """The part of `cache.page_table.PageTable` that the scheduler uses. The executor commits lengths.

    The methods are documented there.
    """

    @property
    def restores(self) -> Restores:
        """Pages on their way back from a KV tier."""

    @property
    def usage(self) -> float:
        """Share of all pages that is in use, 0 to 1."""

    # Room

    def fits_empty_pool(self, length: int, step: int) -> bool:
        """Return whether the empty pool holds a sequence of `length` tokens."""

    def can_grow(self, lengths: Mapping[str, int], step: int, gone: Collection[str] = ()) -> bool:
        """Return whether the free pages let all these sequences reach their lengths together."""

    def growth(self, limit: int) -> int:
        """Return by how many tokens, up to `limit`, a sequence may grow in one step."""

    def reserve(self, cache_id: str, length: int) -> bool:
        """Make room for `length` tokens, or change nothing; an unknown id begins a sequence."""

    @property
    def next_tokens(self) -> NextTokens:
        """One more token of several sequences."""

    def trim(self, cache_id: str) -> None:
        """Release the pages that are reserved beyond the stored length."""

    # Prefix cache

    def match(self, page_hashes: Series[PageHash]) -> int:
        """Return how many leading pages a new sequence can adopt."""

    def has_partial_page(self, page_hash: PageHash) -> bool:
        """Return whether all groups have a page with this hash."""

    def publish_partial_page(self, cache_id: str, length: int, page_hash: PageHash) -> None:
        """Let the page that ends the first `length` tokens be found, though it is not full."""

    def adopt(
        self, cache_id: str, page_hashes: Series[PageHash], count: int, partial_page: PartialPage | None = None
    ) -> None:
        """Begin a sequence with the first `count` pages and a copy of the partial page."""

    def label(self, cache_id: str, page_hashes: Series[PageHash]) -> None:
        """Set the hashes of a sequence that did not begin by `adopt`."""

    def publish(self, cache_id: str) -> None:
        """Let others find the sequence's full pages."""

    def count_lookup(self, asked: int, found: int) -> None:
        """Count a lookup of a prompt."""

    def prefix_counts(self) -> PrefixCounts:
        """Return the counts of the prefix cache."""

    # Sequences

    def can_truncate(self, cache_id: str, length: int) -> bool:
        """Return whether `truncate` to `length` would succeed."""

    def truncate(self, cache_id: str, length: int) -> None:
        """Remove the tokens from `length` on."""

    def fork(self, source: str, target: str) -> None:
        """Begin `target` with all that `source` has stored."""

    def release(self, cache_id: str) -> None:
        """Remove the sequence."""
