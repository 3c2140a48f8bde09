"""The usual step, in which each sequence grows by one token: the questions of the page table, asked for all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ferrum.cache.page_room import Room
from ferrum.cache.page_rows import SequenceRows

if TYPE_CHECKING:
    from ferrum.cache.page_table import PageTable


class NextTokens:
    """One more token of several sequences.

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
