"""The page table as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Series
from typing import Protocol

from ferrum.cache.page_hashes import Name
from ferrum.cache.peak_pages import Growth
from ferrum.cache.prefix_hash import Tail
from ferrum.cache.tiered_restore import Restores
from ferrum.core.snapshots import PrefixCounts


class Pages(Protocol):
    """The page table, as far as the scheduler needs it. The executor commits lengths; the scheduler makes room."""

    @property
    def restores(self) -> Restores:
        """What comes back into the pool from outside."""
        ...

    @property
    def usage(self) -> float:
        """The part of all pages that is in use, 0 to 1."""
        ...

    def fits(self, length: int, step: int, *, cache_id: str | None = None, empty: bool = False) -> bool:
        """Whether a sequence, or a new one, can grow to `length`, at most `step` tokens at a time, in the free pages
        or in an empty pool.
        """
        ...

    def growth(self, most: int) -> int:
        """By how many of `most` tokens a sequence may grow at a time, so that windows have room for them."""
        ...

    def lasts(self, growths: Series[Growth], step: int, gone: Collection[str] = ()) -> bool:
        """Whether the free pages and those of the sequences `gone` last until all of these have ended, at most `step`
        tokens at a time.
        """
        ...

    def match(self, names: Series[Name]) -> int:
        """How many pages of these names are there from the first one on, as far as a new sequence needs them."""
        ...

    def has_tail(self, name: Name) -> bool:
        """Whether there is a page of that name, full or not."""
        ...

    def keep_tail(self, cache_id: str, length: int, name: Name) -> None:
        """Let the page that the first `length` tokens end in be found, though it is not full."""
        ...

    def adopt(self, cache_id: str, names: Series[Name], count: int, tail: Tail | None = None) -> None:
        """Begin a sequence with the pages of the first `count` names, and with a copy of the tail's."""
        ...

    def label(self, cache_id: str, names: Series[Name]) -> None:
        """Say what the pages of a sequence that has begun are called."""
        ...

    def prove(self, cache_id: str) -> None:
        """Let others find the sequence's full pages."""
        ...

    def count_lookup(self, asked: int, found: int) -> None:
        """Note that a prompt was looked up."""
        ...

    def prefix_counts(self) -> PrefixCounts:
        """How the names have served so far."""
        ...

    def reserve(self, cache_id: str, length: int) -> bool:
        """Make room for `length` tokens, all or nothing; an unknown sequence begins."""
        ...

    def trim(self, cache_id: str) -> None:
        """Give back what is reserved beyond the stored length."""
        ...

    def can_truncate(self, cache_id: str, length: int) -> bool:
        """Whether `truncate` to `length` would succeed."""
        ...

    def truncate(self, cache_id: str, length: int) -> None:
        """Forget the tokens from `length` on."""
        ...

    def fork(self, source: str, target: str) -> None:
        """Begin `target` with all that `source` has stored."""
        ...

    def release(self, cache_id: str) -> None:
        """Forget the sequence."""
        ...
