"""Rows of the page table: which pages of the KV pool hold which tokens of which sequence. Host integers only.

A page holds `page_size` consecutive tokens of one sequence in one layer group: row entry i covers the positions
[i * page_size, (i + 1) * page_size). Pages are reference-counted: a fork shares them all, and the first sharer that
grows into a partly filled page gets a copy. The table lists the copies to make, the executor makes them. Values beyond
a sequence's length are dead, so a failed step leaves nothing to undo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter

from ferrum.cache.page_room import FREED, PageRoom, Stored
from ferrum.cache.pool import PageCopy, PageGroup
from ferrum.cache.state_slots import StateSlots
from ferrum.core.errors import RequestError, Unsupported
from ferrum.core.values import kept_length, shown

_changes = attrgetter("changes")


class PageRows(PageRoom):
    """Pages of all sequences in all groups.

    Args:
        groups, max_draft, states, unpaged: see `PageRoom`.
    """

    def __init__(
        self, groups: Iterable[PageGroup], *, max_draft: int = 16, states: StateSlots | None = None, unpaged: int = 0
    ) -> None:
        super().__init__(groups, max_draft=max_draft, states=states, unpaged=unpaged)
        self._copies = [pool.copies for pool in self._pools]
        # The next token's commit then changes more than the length.
        self._changing = states is not None or any(group.window is not None for group in self.groups)
        # One clock for all sequences: an id that is released and used again never repeats a generation.
        self._clock = 0

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

    @property
    def used(self) -> int:
        """Number of pages in use, over all groups."""
        return sum([pool.num_pages - pool.free for pool in self._pools])

    @property
    def usage(self) -> float:
        """Share of all pages that is in use, 0 to 1."""
        return self.used / max(1, sum([pool.num_pages for pool in self._pools]))

    @property
    def changes(self) -> int:
        """A number that increases with every page that is taken or dropped."""
        changes: int = sum(map(_changes, self._pools))
        return changes if self.states is None else changes + self.states.changes

    @property
    def shared(self) -> int:
        """Number of pages with several owners, over all groups."""
        return sum([pool.shared for pool in self._pools])

    # Growth

    def reserve(self, cache_id: str, length: int) -> bool:
        """Make room for `length` tokens in all groups, or change nothing; an unknown id begins a sequence.

        A shared or hashed page that would be written to is replaced by a copy (see `take_copies`).

        Returns:
            False if a group has too few free pages.
        """
        stored = self._stored.get(cache_id)
        if stored is None:
            stored = Stored([[] for _ in self.groups], [0] * len(self.groups), 0, self._tick())
        elif length <= stored.room:  # the usual case, as a page lasts many steps
            return True
        plan = [self._missing(index, stored, length) for index in range(len(self.groups))]
        if any(copy + new > pool.free for (copy, new), pool in zip(plan, self._pools, strict=True)):
            return False
        self._stored[cache_id] = stored
        for (copy, new), group, pool, row in zip(plan, self.groups, self._pools, stored.rows, strict=True):
            if copy:
                partial = stored.length // group.page_size
                row[partial] = pool.replace(row[partial])
            row.extend(pool.take() for _ in range(new))
            if copy or new:
                stored.changes = self._tick()
        stored.room = self._reserved(stored)
        if length <= stored.length:  # then the partly filled page may still have to be copied
            stored.room = min(stored.room, stored.length)
        return True

    def reserve_next(self, cache_ids: Sequence[str], starts: Sequence[int]) -> bool:
        """Make room for one token of each of these sequences at its position; see `reserve`."""
        known = self._stored
        for cache_id, start in zip(cache_ids, starts, strict=True):
            stored = known.get(cache_id)
            if (stored is None or start >= stored.room) and not self.reserve(cache_id, start + 1):
                return False
        return True

    def find_changed_rows(
        self, cache_ids: Sequence[str], starts: Sequence[int], ahead: int, changes: list[int]
    ) -> list[int] | None:
        """Make room for one token of each sequence, and return the indices of those whose rows have changed.

        Args:
            cache_ids: the sequences.
            starts: positions of the tokens.
            ahead: tokens before them that are in flight.
            changes: `Stored.changes` of each sequence at the last call; updated.

        Returns:
            None if a sequence is unknown, has another length, or finds no room.
        """
        known, found = self._stored, []
        for index, (cache_id, start) in enumerate(zip(cache_ids, starts, strict=True)):
            stored = known.get(cache_id)
            if stored is None or stored.length + ahead != start:
                return None
            if start >= stored.room and not self.reserve(cache_id, start + 1):
                return None
            if stored.changes != changes[index]:
                changes[index] = stored.changes
                found.append(index)
        return found

    def _missing(self, index: int, stored: Stored, length: int) -> tuple[bool, int]:
        """Return whether the group must copy the partly filled page to reach `length`, and how many pages it adds."""
        group, row = self.groups[index], stored.rows[index]
        copy = length > stored.length and self._must_copy(index, stored)
        return copy, max(0, group.pages(length) - len(row))

    @property
    def needs_copies(self) -> bool:
        """Whether `take_copies` has anything to return."""
        return any(self._copies)

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
        """Advance the stored length to `length`, and each kind of what is stored: a step has succeeded.

        Window groups free the pages that no later query can see. A state that the step has written becomes the
        sequence's.

        Raises:
            UnknownSequence: no such sequence.
            RequestError: `length` is below the stored length or beyond the reserved pages.
        """
        stored = self._get(cache_id)
        if not stored.length <= length <= stored.room:
            reserved = self._reserved(stored)
            if not stored.length <= length <= reserved:
                raise RequestError(f"{length} is not in [{stored.length}, {reserved}]", param="length")
        stored.length = length
        stored.generation = self._tick()
        self._assign_hashes(stored)
        if not stored.held:
            self._free_unseen(stored)
        if self.states is not None:
            self.states.commit(cache_id)

    def commit_next(self, cache_ids: Sequence[str], lengths: Sequence[int]) -> None:
        """Advance each of these sequences by one token to its length; see `commit`."""
        size, known = self.page_size, self._stored
        for cache_id, length in zip(cache_ids, lengths, strict=True):
            stored = known.get(cache_id)
            if self._changing or stored is None or length % size == 0 or length > stored.room:
                self.commit(cache_id, length)
            else:
                stored.length = length
                self._clock += 1
                stored.generation = self._clock

    def _free_unseen(self, stored: Stored) -> None:
        for index, group in enumerate(self.groups):
            if group.window is None:
                continue
            for page in range(stored.freed[index], group.unseen(stored.length - self._slack(group))):
                self._pools[index].drop(stored.rows[index][page])
                stored.rows[index][page] = FREED
                stored.freed[index] += 1
                stored.changes = self._tick()

    # Undo

    @contextmanager
    def holding(self, cache_ids: Collection[str]) -> Iterator[None]:
        """Keep all pages of these sequences, so that a truncation to their present lengths succeeds.

        Raises UnknownSequence.
        """
        held = {cache_id: stored for cache_id in cache_ids if not (stored := self._get(cache_id)).held}
        for cache_id, stored in held.items():
            stored.held = True
            if self.states is not None:
                self.states.hold(cache_id, stored.length)
        try:
            yield
        finally:
            for cache_id, stored in held.items():
                stored.held = False
                if self._stored.get(cache_id) is stored:
                    self._free_unseen(stored)
                    if self.states is not None:
                        self.states.unhold(cache_id)

    def abandon(self, cache_id: str) -> None:
        """Give back what the sequence's failed steps have taken, none of which is in flight. Raises UnknownSequence."""
        self.trim(cache_id)
        if self.states is not None:
            self.states.abandon(cache_id)

    def trim(self, cache_id: str) -> None:
        """Release the pages that are reserved beyond the stored length. Raises UnknownSequence."""
        stored = self._get(cache_id)
        for group, pool, row in zip(self.groups, self._pools, stored.rows, strict=True):
            while len(row) > group.pages(stored.length):
                pool.drop(row.pop())
                stored.changes = self._tick()
        stored.room = min(stored.room, stored.length)

    def can_truncate(self, cache_id: str, length: int) -> bool:
        """Return whether the tokens from position `length` on still find all they depend on. Raises UnknownSequence."""
        stored = self._get(cache_id)
        if self.states is not None and not self.states.can_truncate(cache_id, length):
            return False
        return length == 0 or all(
            freed == 0 or freed * group.page_size <= length - (group.window or 0) + 1
            for group, freed in zip(self.groups, stored.freed, strict=True)
        )

    def truncate(self, cache_id: str, length: int) -> None:
        """Remove the tokens from position `length` on and release their pages; at the stored length, do nothing.

        Raises:
            UnknownSequence: no such sequence.
            RequestError: `length` is no integer, negative or beyond the stored length.
            Unsupported: a window group has freed keys that the next query would see, or a state has seen later tokens.
        """
        stored = self._get(cache_id)
        length = kept_length("length", length, stored.length)
        if length == stored.length:
            return
        if not self.can_truncate(cache_id, length):
            what = "keys before it have left the window and are freed"
            if self.states is not None and not self.states.can_truncate(cache_id, length):
                what = "the state of its recurrent layers has seen later tokens (0 begins it again)"
            raise Unsupported("truncation", f"position {length}: {what}")
        if length == 0:
            self._drop_rows(stored)
        stored.length = length
        stored.changes = self._tick()
        stored.generation = self._tick()
        stored.hashes.cut(length // self.page_size)
        self.trim(cache_id)
        if self.states is not None:
            self.states.truncate(cache_id, length)

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
        stored.room = min(stored.room, stored.length)
        self._stored[target] = Stored(rows, list(stored.freed), stored.length, self._tick())
        if self.states is not None:
            self.states.fork(source, target)

    def release(self, cache_id: str) -> None:
        """Remove the sequence and drop its pages; an unknown id is no error."""
        stored = self._stored.pop(cache_id, None)
        if stored is not None:
            stored.hashes.discard()
            self._drop_rows(stored)
            if self.states is not None:
                self.states.release(cache_id)

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
        if self.states is not None:
            self.states.check()

    def _reserved(self, stored: Stored) -> int:
        """Return the tokens that the rows hold."""
        rows = zip(stored.rows, self.groups, strict=True)
        return min((len(row) * group.page_size for row, group in rows), default=self.capacity_tokens)

    def _assign_hashes(self, stored: Stored) -> None:
        full = stored.length // self.page_size
        stored.hashes.assign(self._pools, stored.rows, stored.freed, full)

    def _drop_rows(self, stored: Stored) -> None:
        for index, pool in enumerate(self._pools):
            # Backwards, so that the free list returns them in their old order.
            for page in reversed(stored.rows[index][stored.freed[index] :]):
                pool.drop(page)
            stored.rows[index].clear()
            stored.freed[index] = 0

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
