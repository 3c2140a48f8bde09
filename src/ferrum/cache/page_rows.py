"""Rows of the page table: which pages of the KV pool hold which tokens of which sequence. Host integers only.

A page holds `page_size` consecutive tokens of one sequence in one layer group: row entry i covers the positions
[i * page_size, (i + 1) * page_size). Pages are reference-counted: a fork shares them all, and the first sharer that
grows into a partly filled page gets a copy. The table lists the copies to make, the executor makes them. Values beyond
a sequence's length are dead, so a failed step leaves nothing to undo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from ferrum.cache.page_hashes import SequenceHashes
from ferrum.cache.pool import PageCopy, PageGroup, PagePool, capacity_tokens
from ferrum.core.errors import RequestError, UnknownSequence, Unsupported
from ferrum.core.values import kept_length, shown

FREED: Final = -1
"""Row entry of a page whose tokens have left the window for good."""


@dataclass(slots=True)
class Stored:
    """State of one sequence: a row per group, and the number of leading FREED entries of each row.

    While it is held, no page leaves a window.
    """

    rows: list[list[int]]
    freed: list[int]
    length: int
    generation: int
    hashes: SequenceHashes = field(default_factory=SequenceHashes)
    held: bool = False


class PageRows:
    """Pages of all sequences in all groups.

    Args:
        groups: at least one, with distinct names.
        max_draft: longest draft. A window group keeps this many tokens and one page more than the next query sees, so
            that a truncation by a draft always succeeds.
    """

    def __init__(self, groups: Iterable[PageGroup], *, max_draft: int = 16) -> None:
        self.groups = tuple(groups)
        self._pools = tuple(PagePool(group.num_pages) for group in self.groups)
        self._index = {group.name: index for index, group in enumerate(self.groups)}
        self._max_draft = max_draft
        self._stored: dict[str, Stored] = {}
        # One clock for all sequences: an id that is released and used again never repeats a generation.
        self._clock = 0
        assert self.groups and len(self._index) == len(self.groups), "groups need distinct names"
        assert all(group.num_pages >= 0 and group.page_size > 0 for group in self.groups)

    # Queries

    def __contains__(self, cache_id: str) -> bool:
        return cache_id in self._stored

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all sequences, oldest first."""
        return tuple(self._stored)

    def length(self, cache_id: str) -> int:
        """Return the number of stored tokens. Raises UnknownSequence."""
        return self._get(cache_id).length

    def generation(self, cache_id: str) -> int:
        """Return a number that increases with every commit and truncation. Raises UnknownSequence."""
        return self._get(cache_id).generation

    def row(self, cache_id: str, group: str) -> Sequence[int]:
        """Return a live view of the sequence's page numbers, with reserved pages and FREED entries."""
        return self._get(cache_id).rows[self._index[group]]

    def free(self, group: str) -> int:
        """Return the number of free pages of the group."""
        return self._pools[self._index[group]].free

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the whole pool holds."""
        return capacity_tokens(self.groups)

    @property
    def used(self) -> int:
        """Number of pages in use, over all groups."""
        return sum([pool.num_pages - pool.free for pool in self._pools])

    @property
    def usage(self) -> float:
        """Share of all pages that is in use, 0 to 1."""
        return self.used / max(1, sum([pool.num_pages for pool in self._pools]))

    @property
    def shared(self) -> int:
        """Number of pages with several owners, over all groups."""
        return sum([pool.shared for pool in self._pools])

    def fits_empty_pool(self, length: int, step: int) -> bool:
        """Return whether the empty pool holds a sequence of `length` tokens.

        Args:
            length: number of tokens.
            step: largest number of tokens between two commits. A window group holds them in addition to its window.
        """
        return all(self._max_pages(group, length, step) <= group.num_pages for group in self.groups)

    def can_grow(self, lengths: Mapping[str, int], step: int, gone: Collection[str] = ()) -> bool:
        """Return whether the free pages let all these sequences reach their lengths together.

        Args:
            lengths: final number of tokens of each sequence.
            step: largest number of tokens between two commits.
            gone: sequences whose pages count as free, except those that other sequences share.

        Raises:
            UnknownSequence: one of them does not exist.
        """
        ends = [(self._get(cache_id), length) for cache_id, length in lengths.items()]
        for index, group in enumerate(self.groups):
            wanted = sum(
                max(0, self._max_pages(group, length, step) - self._usable(index, stored)) for stored, length in ends
            )
            if wanted > self._free(index, gone):
                return False
        return True

    def growth(self, limit: int) -> int:
        """Return by how many tokens, up to `limit`, a sequence may grow in one step.

        The result is below `limit` if a window group then holds a sequence of any length, and otherwise would not; it
        is never less than a page.
        """
        for group in self.groups:
            if group.window is not None:
                room = (group.num_pages - 1) * group.page_size - group.window - self._slack(group)
                limit = min(limit, room) if room >= group.page_size else limit
        return limit

    def _free(self, index: int, gone: Collection[str]) -> int:
        """Return the free pages of a group if these sequences were released."""
        rows = (self._get(cache_id) for cache_id in gone)
        pages = (page for stored in rows for page in stored.rows[index][stored.freed[index] :])
        return self._pools[index].free + self._pools[index].owned_by(pages)

    def _usable(self, index: int, stored: Stored) -> int:
        """Return the sequence's pages without a partly filled one that must be copied first."""
        return len(stored.rows[index]) - stored.freed[index] - self._must_copy(index, stored)

    def _max_pages(self, group: PageGroup, length: int, step: int) -> int:
        """Return the largest number of pages of a sequence that grows to `length` in steps of `step`."""
        if group.window is None:
            return group.pages(length)
        # The kept tokens may begin and end in the middle of a page.
        return group.pages(min(length, group.window + self._slack(group) + step + group.page_size))

    # Growth

    def reserve(self, cache_id: str, length: int) -> bool:
        """Make room for `length` tokens in all groups, or change nothing; an unknown id begins a sequence.

        A shared or hashed page that would be written to is replaced by a copy (see `take_copies`).

        Returns:
            False if a group has too few free pages.
        """
        stored = self._stored.get(cache_id)
        if stored is not None and self._has_room(stored, length):
            return True
        if stored is None:
            stored = Stored([[] for _ in self.groups], [0] * len(self.groups), 0, self._tick())
        plan = [self._missing(index, stored, length) for index in range(len(self.groups))]
        if any(copy + new > pool.free for (copy, new), pool in zip(plan, self._pools, strict=True)):
            return False
        self._stored[cache_id] = stored
        for (copy, new), group, pool, row in zip(plan, self.groups, self._pools, stored.rows, strict=True):
            if copy:
                partial = stored.length // group.page_size
                row[partial] = pool.replace(row[partial])
            row.extend(pool.take() for _ in range(new))
        return True

    def _has_room(self, stored: Stored, length: int) -> bool:
        """Return whether the rows hold `length` tokens as they are: the usual case, as a page lasts many steps."""
        for index, group in enumerate(self.groups):
            if len(stored.rows[index]) * group.page_size < length:
                return False
            if length > stored.length and self._must_copy(index, stored):
                return False
        return True

    def _missing(self, index: int, stored: Stored, length: int) -> tuple[bool, int]:
        """Return whether the group must copy the partly filled page to reach `length`, and how many pages it adds."""
        group, row = self.groups[index], stored.rows[index]
        copy = length > stored.length and self._must_copy(index, stored)
        return copy, max(0, group.pages(length) - len(row))

    def _must_copy(self, index: int, stored: Stored) -> bool:
        """Return whether the partly filled page, if any, is shared or hashed."""
        partial, filled = divmod(stored.length, self.groups[index].page_size)
        return filled > 0 and self._pools[index].is_fixed(stored.rows[index][partial])

    def take_copies(self) -> tuple[PageCopy, ...]:
        """Return the page copies to make before the next write to the pool; from now on they count as made.

        No target is a source, and no target appears twice, so any order works. Until they are taken, the sources stay
        out of the free list, and releasing a target cancels its copy.
        """
        return tuple(
            PageCopy(group.name, source, target)
            for group, pool in zip(self.groups, self._pools, strict=True)
            for target, source in pool.take_copies()
        )

    def commit(self, cache_id: str, length: int) -> None:
        """Advance the stored length to `length`; window groups free the pages that no later query can see.

        Raises:
            UnknownSequence: no such sequence.
            RequestError: `length` is below the stored length or beyond the reserved pages.
        """
        stored = self._get(cache_id)
        reserved = min(len(row) * group.page_size for row, group in zip(stored.rows, self.groups, strict=True))
        if not stored.length <= length <= reserved:
            raise RequestError(f"{length} is not in [{stored.length}, {reserved}]", param="length")
        stored.length = length
        stored.generation = self._tick()
        self._assign_hashes(stored)
        if not stored.held:
            self._free_unseen(stored)

    def _free_unseen(self, stored: Stored) -> None:
        for index, group in enumerate(self.groups):
            if group.window is None:
                continue
            for page in range(stored.freed[index], group.unseen(stored.length - self._slack(group))):
                self._pools[index].drop(stored.rows[index][page])
                stored.rows[index][page] = FREED
                stored.freed[index] += 1

    # Undo

    @contextmanager
    def holding(self, cache_ids: Collection[str]) -> Iterator[None]:
        """Keep all pages of these sequences, so that a truncation to their present lengths succeeds.

        Raises UnknownSequence.
        """
        held = {cache_id: stored for cache_id in cache_ids if not (stored := self._get(cache_id)).held}
        for stored in held.values():
            stored.held = True
        try:
            yield
        finally:
            for cache_id, stored in held.items():
                stored.held = False
                if self._stored.get(cache_id) is stored:
                    self._free_unseen(stored)

    def trim(self, cache_id: str) -> None:
        """Release the pages that are reserved beyond the stored length. Raises UnknownSequence."""
        stored = self._get(cache_id)
        for group, pool, row in zip(self.groups, self._pools, stored.rows, strict=True):
            while len(row) > group.pages(stored.length):
                pool.drop(row.pop())

    def can_truncate(self, cache_id: str, length: int) -> bool:
        """Return whether the queries from position `length` on still find all they see. Raises UnknownSequence."""
        stored = self._get(cache_id)
        return length == 0 or all(
            freed == 0 or freed * group.page_size <= length - (group.window or 0) + 1
            for group, freed in zip(self.groups, stored.freed, strict=True)
        )

    def truncate(self, cache_id: str, length: int) -> None:
        """Remove the tokens from position `length` on and release their pages; at the stored length, do nothing.

        Raises:
            UnknownSequence: no such sequence.
            RequestError: `length` is no integer, negative or beyond the stored length.
            Unsupported: a window group has freed keys that the next query would see.
        """
        stored = self._get(cache_id)
        length = kept_length("length", length, stored.length)
        if length == stored.length:
            return
        if not self.can_truncate(cache_id, length):
            raise Unsupported("truncation", f"the keys before position {length} have left the window and are freed")
        if length == 0:
            self._drop_rows(stored)
        stored.length = length
        stored.generation = self._tick()
        stored.hashes.cut(length // self.groups[0].page_size)
        self.trim(cache_id)

    def fork(self, source: str, target: str) -> None:
        """Begin `target` as a copy of `source` that shares all its stored pages, the partly filled one included.

        Raises:
            UnknownSequence: no such source.
            RequestError: the target exists.
        """
        stored = self._get(source)
        if target in self._stored:
            raise RequestError(f"the sequence {shown(target)} exists already", param="target")
        rows = [row[: group.pages(stored.length)] for row, group in zip(stored.rows, self.groups, strict=True)]
        for row, freed, pool in zip(rows, stored.freed, self._pools, strict=True):
            for page in row[freed:]:
                pool.share(page)
        self._stored[target] = Stored(rows, list(stored.freed), stored.length, self._tick())

    def release(self, cache_id: str) -> None:
        """Remove the sequence and drop its pages; an unknown id is no error."""
        stored = self._stored.pop(cache_id, None)
        if stored is not None:
            stored.hashes.discard()
            self._drop_rows(stored)

    def check(self) -> None:
        """Assert that rows, lengths, reference counts, copies and free lists agree; every page is somewhere, once."""
        for index, (group, pool) in enumerate(zip(self.groups, self._pools, strict=True)):
            counts = [0] * group.num_pages
            for cache_id, stored in self._stored.items():
                row, freed = stored.rows[index], stored.freed[index]
                assert len(row) >= group.pages(stored.length), f"{cache_id}: {group.name} is shorter than its length"
                assert row[:freed] == [FREED] * freed, f"{cache_id}: {group.name} has a wrong count of freed pages"
                assert freed * group.page_size <= max(0, stored.length), f"{cache_id}: {group.name} freed too much"
                for page in row[freed:]:
                    counts[page] += 1
            pool.check(counts)

    def _get(self, cache_id: str) -> Stored:
        try:
            return self._stored[cache_id]
        except KeyError:
            raise UnknownSequence(f"there is no sequence {shown(cache_id)}", param="cache_id") from None

    def _assign_hashes(self, stored: Stored) -> None:
        full = stored.length // self.groups[0].page_size
        stored.hashes.assign(self._pools, stored.rows, stored.freed, full)

    def _drop_rows(self, stored: Stored) -> None:
        for index, pool in enumerate(self._pools):
            # Backwards, so that the free list returns them in their old order.
            for page in reversed(stored.rows[index][stored.freed[index] :]):
                pool.drop(page)
            stored.rows[index].clear()
            stored.freed[index] = 0

    def _slack(self, group: PageGroup) -> int:
        return self._max_draft + group.page_size

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
