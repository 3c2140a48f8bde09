"""`SequenceRows`: which pages of the KV pool hold which tokens of one sequence. Host integers only.

A page holds `page_size` consecutive tokens of one sequence in one layer group: row entry i covers the positions
[i * page_size, (i + 1) * page_size). Pages are reference-counted: a fork shares them all, and the first sharer that
grows into a partly filled page gets a copy. Values beyond a sequence's length are dead, so a failed step leaves nothing
to undo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ferrum.cache.page_hashes import PartialPage, SequenceHashes
from ferrum.cache.pool import PageHash, Room
from ferrum.core.errors import UnknownSequence
from ferrum.core.step import AdapterUse
from ferrum.core.values import shown

if TYPE_CHECKING:
    from ferrum.cache.page_table import PageTable

FREED: Final = -1
"""Row entry of a page whose tokens have left the window for good."""


class SequenceRows:
    """A row of pages for each layer group.

    Args:
        room: the pools.
        length: stored tokens.
        rows, freed: page numbers by group, and the number of leading FREED entries of each; None: no pages.
        hashes: of the pages.

    Attributes:
        generation: a number that increases with every commit and truncation.
        reserved: tokens that the rows hold as they are. After any change but growth it is at most the length, until
            the next `grow` has looked at the partly filled page.
        changes: a number that every change of the rows raises, so that copies of them can be kept. No earlier sequence
            of this id had it.
        held: no page leaves a window.
        adapters: of the sequence's last step with adapters, or chosen for the next.
        blocks: see `Inputs.block`.
    """

    __slots__ = (
        "_room",
        "adapters",
        "blocks",
        "changes",
        "freed",
        "generation",
        "hashes",
        "held",
        "length",
        "reserved",
        "rows",
    )

    def __init__(
        self,
        room: Room,
        length: int = 0,
        rows: list[list[int]] | None = None,
        freed: list[int] | None = None,
        hashes: SequenceHashes | None = None,
        adapters: tuple[AdapterUse, ...] = (),
    ) -> None:
        self._room = room
        self.length = length
        self.rows = [[] for _ in room.groups] if rows is None else rows
        self.freed = [0] * len(room.groups) if freed is None else freed
        self.hashes = hashes or SequenceHashes()
        self.generation = self.changes = room.tick()
        self.reserved = 0
        self.held = False
        self.adapters = adapters
        self.blocks: tuple[range, ...] = ()

    def pages(self, index: int) -> Sequence[int]:
        """Return the page numbers of a group that are still held."""
        return self.rows[index][self.freed[index] :]

    def usable(self, index: int) -> int:
        """Return the pages of a group without a partly filled one that must be copied first."""
        return len(self.rows[index]) - self.freed[index] - self._must_copy(index)

    def capacity(self) -> int | None:
        """Return the tokens that the rows hold; None without groups, where nothing limits them."""
        pairs = zip(self.rows, self._room.groups, strict=True)
        return min((len(row) * group.page_size for row, group in pairs), default=None)

    def grow(self, length: int) -> bool:
        """Make room for `length` tokens in all groups; return False, with nothing changed, if pages are too few.

        A shared or hashed page that would be written to is replaced by a copy.
        """
        room = self._room
        plan = [
            (length > self.length and self._must_copy(index), max(0, group.pages(length) - len(self.rows[index])))
            for index, group in enumerate(room.groups)
        ]
        if any(copy + new > pool.free for (copy, new), pool in zip(plan, room.pools, strict=True)):
            return False
        for (copy, new), group, pool, row in zip(plan, room.groups, room.pools, self.rows, strict=True):
            if copy:
                partial = self.length // group.page_size
                row[partial] = pool.replace(row[partial])
            row.extend(pool.take() for _ in range(new))
            if copy or new:
                self.changes = room.tick()
        held = self.capacity()
        self.reserved = length if held is None else held
        if length <= self.length:  # then the partly filled page may still have to be copied
            self.reserved = min(self.reserved, self.length)
        return True

    def advance(self, length: int) -> None:
        """Set the stored length, which is not below the present one; windows free what no later query can see."""
        self.length = length
        self.generation = self._room.tick()
        self.assign_hashes()
        if not self.held:
            self.free_unseen()

    def assign_hashes(self) -> None:
        """Give full pages their hashes."""
        room = self._room
        self.hashes.assign(room.pools, self.rows, self.freed, self.length // room.page_size)

    def free_unseen(self) -> None:
        """Free the pages that have left their windows."""
        room = self._room
        for index, (group, pool) in enumerate(zip(room.groups, room.pools, strict=True)):
            if group.window is None:
                continue
            for page in range(self.freed[index], group.unseen(self.length - room.slack(group))):
                pool.drop(self.rows[index][page])
                self.rows[index][page] = FREED
                self.freed[index] += 1
                self.changes = room.tick()

    def trim(self) -> None:
        """Release the pages that are reserved beyond the stored length."""
        room = self._room
        for group, pool, row in zip(room.groups, room.pools, self.rows, strict=True):
            while len(row) > group.pages(self.length):
                pool.drop(row.pop())
                self.changes = room.tick()
        self.reserved = min(self.reserved, self.length)

    def sees_from(self, length: int) -> bool:
        """Return whether the queries from position `length` on still find all the keys that they see."""
        pairs = zip(self._room.groups, self.freed, strict=True)
        return length == 0 or all(
            freed == 0 or freed * group.page_size <= length - (group.window or 0) + 1 for group, freed in pairs
        )

    def cut(self, length: int) -> None:
        """Go back to `length` tokens, from which on `sees_from` holds."""
        if length == 0:
            self.drop()
        self.length = length
        self.adapters = tuple(replace(use, start=min(use.start, length)) for use in self.adapters)
        self.blocks = tuple(block for block in self.blocks if block.start < length)
        self.changes = self._room.tick()
        self.generation = self._room.tick()
        self.hashes.cut(length // self._room.page_size)
        self.trim()

    def share(self) -> SequenceRows:
        """Return rows that share all stored pages, the partly filled one included."""
        room = self._room
        rows = [row[: group.pages(self.length)] for row, group in zip(self.rows, room.groups, strict=True)]
        for row, freed, pool in zip(rows, self.freed, room.pools, strict=True):
            for page in row[freed:]:
                pool.share(page)
        self.reserved = min(self.reserved, self.length)
        shared = SequenceRows(room, self.length, rows, list(self.freed), adapters=self.adapters)
        shared.blocks = self.blocks
        return shared

    def drop(self) -> None:
        """Drop all pages."""
        for index, pool in enumerate(self._room.pools):
            # Backwards, so that the free list returns them in their old order.
            for page in reversed(self.pages(index)):
                pool.drop(page)
            self.rows[index].clear()
            self.freed[index] = 0

    def publish_partial(self, length: int, page_hash: PageHash) -> None:
        """Let the page that ends the first `length` tokens be found, though it is not full."""
        pools = self._room.pools
        pages = [row[length // self._room.page_size] for row in self.rows]
        if not any(page in pool.copies for pool, page in zip(pools, pages, strict=True)):  # else it is not written yet
            for pool, page in zip(pools, pages, strict=True):
                hashed = pool.hashes.assign(page, page_hash, partial=True)
                if hashed is not None:
                    pool.publish(hashed)
            self.reserved = min(self.reserved, self.length)

    def stop_holding(self) -> None:
        """Let pages leave their windows again."""
        self.held = False
        self.free_unseen()

    def count(self, index: int, counts: list[int]) -> None:
        """Assert that the row of a group fits the length, and count its pages."""
        group, row, freed = self._room.groups[index], self.rows[index], self.freed[index]
        assert len(row) >= group.pages(self.length), f"a row of {group.name} is shorter than its length"
        assert row[:freed] == [FREED] * freed, f"a row of {group.name} has a wrong count of freed pages"
        assert freed * group.page_size <= max(0, self.length), f"a row of {group.name} freed too much"
        for page in row[freed:]:
            counts[page] += 1

    def _must_copy(self, index: int) -> bool:
        """Return whether the partly filled page, if any, is shared or hashed."""
        partial, filled = divmod(self.length, self._room.groups[index].page_size)
        return filled > 0 and self._room.pools[index].is_fixed(self.rows[index][partial])


class KnownRows(dict[str, SequenceRows]):
    """Rows by sequence. Another key raises UnknownSequence."""

    def __missing__(self, cache_id: str) -> SequenceRows:
        raise UnknownSequence(f"there is no sequence {shown(cache_id)}", param="cache_id")


def adopted_rows(
    room: Room, page_hashes: Sequence[PageHash], count: int, partial_page: PartialPage | None
) -> SequenceRows:
    """Return rows of the first `count` pages with these hashes, and of a page whose first tokens come next."""
    length = count * room.page_size + (0 if partial_page is None else partial_page.tokens)
    last = () if partial_page is None else (partial_page.page_hash,)
    rows, freed = [], [group.unseen(length) for group in room.groups]
    for gone, pool in zip(freed, room.pools, strict=True):
        rows.append([FREED] * gone + [pool.adopt(each) for each in (*page_hashes[gone:count], *last)])
    return SequenceRows(room, length, rows, freed, SequenceHashes(page_hashes, count))


def new_rows(room: Room, length: int, freed: Sequence[int]) -> SequenceRows | None:
    """Return rows of `length` tokens on new pages, without the first `freed` of each group; None without room."""
    counts = [group.pages(length) - gone for group, gone in zip(room.groups, freed, strict=True)]
    if any(count > pool.free for count, pool in zip(counts, room.pools, strict=True)):
        return None
    parts = zip(counts, freed, room.pools, strict=True)
    rows = [[FREED] * gone + [pool.take() for _ in range(count)] for count, gone, pool in parts]
    return SequenceRows(room, length, rows, list(freed))


def can_grow(room: Room, ends: Sequence[tuple[SequenceRows, int]], step: int, leaving: Sequence[SequenceRows]) -> bool:
    """Return whether the free pages let sequences reach their lengths together, see `PageTable.can_grow`."""
    for index, (group, pool) in enumerate(zip(room.groups, room.pools, strict=True)):
        slack = room.slack(group) if group.window is not None else 0
        needs = sum([max(0, group.most_pages(end, step, slack) - rows.usable(index)) for rows, end in ends])
        given = pool.owned_by(page for rows in leaving for page in rows.pages(index)) if leaving else 0
        if needs > pool.free + given:
            return False
    return True


class NextTokens:
    """The usual step, in which each sequence grows by one token: the questions of the table, asked for all at once.

    Args:
        table: does what is unusual, such as taking a page.
        room: its pools.
        rows: its sequences.
        changing: a commit changes more than lengths.
    """

    def __init__(self, table: PageTable, room: Room, rows: Mapping[str, SequenceRows], *, changing: bool) -> None:
        self._table, self._room, self._rows, self._changing = table, room, rows, changing

    def reserve(self, cache_ids: Sequence[str], starts: Sequence[int]) -> bool:
        """Make room for one token of each of these sequences at its position; see `PageTable.reserve`."""
        known = self._rows
        for cache_id, start in zip(cache_ids, starts, strict=True):
            stored = known.get(cache_id)
            if (stored is None or start >= stored.reserved) and not self._table.reserve(cache_id, start + 1):
                return False
        return True

    def changed_rows(
        self, cache_ids: Sequence[str], starts: Sequence[int], ahead: int, changes: list[int]
    ) -> list[int] | None:
        """Make room for one token of each sequence, and return the indices of those whose rows have changed.

        Args:
            cache_ids: the sequences.
            starts: positions of the tokens.
            ahead: tokens before them that are in flight.
            changes: `SequenceRows.changes` of each sequence at the last call; updated.

        Returns:
            None if a sequence is unknown, has another length, or finds no room.
        """
        known, found = self._rows, []
        for index, (cache_id, start) in enumerate(zip(cache_ids, starts, strict=True)):
            stored = known.get(cache_id)
            if stored is None or stored.length + ahead != start:
                return None
            if start >= stored.reserved and not self._table.reserve(cache_id, start + 1):
                return None
            if stored.changes != changes[index]:
                changes[index] = stored.changes
                found.append(index)
        return found

    def commit(self, cache_ids: Sequence[str], lengths: Sequence[int]) -> None:
        """Advance each of these sequences by one token to its length; see `PageTable.commit`."""
        size, known = self._room.page_size, self._rows
        for cache_id, length in zip(cache_ids, lengths, strict=True):
            stored = known.get(cache_id)
            if self._changing or stored is None or length % size == 0 or length > stored.reserved:
                self._table.commit(cache_id, length)
            else:
                stored.length = length
                stored.generation = self._room.tick()
