"""The rows of the page table: which pages of the KV pool hold which tokens of which sequence. Host integers only.

A page holds `page_size` consecutive tokens of one sequence in one layer group; row entry i covers the positions
[i * page_size, (i + 1) * page_size). Pages are counted by the rows that name them: a fork shares them all, and the
first of the sharers to grow into a partly filled one gets a copy of its own. The table says which pages to copy, the
executor copies. Anything written beyond a sequence's length is dead, so a step that fails leaves nothing to undo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ferrum.cache.layer_groups import PageCopy, PageGroup, capacity_tokens
from ferrum.cache.peak_pages import Growth, Holding, most_wanted
from ferrum.cache.pool import PagePool
from ferrum.cache.prefix_hash import SequenceNames
from ferrum.core.errors import RequestError, UnknownSequence, Unsupported
from ferrum.core.values import kept_length, shown

FREED: Final = -1
"""In a row: a page whose tokens have left the window for good."""


@dataclass(slots=True)
class Stored:
    """What the table knows of a sequence; `rows` has one row per group, `freed` their leading FREED entries.

    While it is held, no page leaves a window.
    """

    rows: list[list[int]]
    freed: list[int]
    length: int
    generation: int
    names: SequenceNames = field(default_factory=SequenceNames)
    held: bool = False


class PageRows:
    """Pages of all sequences in all groups.

    Args:
        groups: at least one, with distinct names.
        max_draft: longest draft; a window group keeps so many tokens, and one page, more than the next query sees,
            so that a truncation this far always succeeds.
    """

    def __init__(self, groups: Iterable[PageGroup], *, max_draft: int = 16) -> None:
        self.groups = tuple(groups)
        self._pools = tuple(PagePool(group.num_pages) for group in self.groups)
        self._index = {group.name: index for index, group in enumerate(self.groups)}
        self._max_draft = max_draft
        self._stored: dict[str, Stored] = {}
        # One clock for all sequences: an id that is released and begun anew never repeats a generation.
        self._clock = 0
        assert self.groups and len(self._index) == len(self.groups), "groups need distinct names"
        assert all(group.num_pages >= 0 and group.page_size > 0 for group in self.groups)

    # What is there

    def __contains__(self, cache_id: str) -> bool:
        return cache_id in self._stored

    def ids(self) -> tuple[str, ...]:
        """All sequences, oldest first."""
        return tuple(self._stored)

    def length(self, cache_id: str) -> int:
        """Number of stored tokens. Raises UnknownSequence."""
        return self._get(cache_id).length

    def generation(self, cache_id: str) -> int:
        """A number that every commit and truncation raises. Raises UnknownSequence."""
        return self._get(cache_id).generation

    def row(self, cache_id: str, group: str) -> Sequence[int]:
        """Page numbers of the sequence, reserved ones included, FREED for those that left the window: a live view."""
        return self._get(cache_id).rows[self._index[group]]

    def free(self, group: str) -> int:
        """Number of free pages of the group."""
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
        """The part of all pages that is in use, 0 to 1."""
        return self.used / max(1, sum([pool.num_pages for pool in self._pools]))

    @property
    def shared(self) -> int:
        """Number of pages with more than one owner, over all groups."""
        return sum([pool.shared for pool in self._pools])

    def fits(self, length: int, step: int, *, cache_id: str | None = None, empty: bool = False) -> bool:
        """Whether a sequence can grow to `length` tokens, at most `step` at a time.

        Args:
            length: its length at the end, in tokens.
            step: most tokens between two commits: a window group holds them all beside its window.
            cache_id: the sequence, which has begun; None: a new one.
            empty: ask it of the empty pool, instead of the pages that are free now.
        """
        stored = None if cache_id is None else self._get(cache_id)
        for index, (group, pool) in enumerate(zip(self.groups, self._pools, strict=True)):
            held = 0 if stored is None else self._usable(index, stored)
            if self._most_pages(group, length, step) > held + (pool.num_pages if empty else pool.free):
                return False
        return True

    def lasts(self, growths: Sequence[Growth], step: int, gone: Collection[str] = ()) -> bool:
        """Whether the free pages last until all of these have ended, at most `step` tokens at a time.

        Args:
            gone: sequences whose pages count as free, but for those that others own, too.

        Raises:
            UnknownSequence: one of them has not begun.
        """
        sequences = [self._get(growth.cache_id) for growth in growths]
        for index, (group, pool) in enumerate(zip(self.groups, self._pools, strict=True)):
            pages, free = partial(self._most_pages, group, step=step), self._free(index, gone)
            usable = [self._usable(index, stored) for stored in sequences]
            ends = zip(growths, usable, strict=True)
            if sum(max(0, pages(each.length + each.to_come) - held) for each, held in ends) <= free:
                continue  # even if all ended at once, as they do where there is room
            rows = [stored.rows[index][stored.freed[index] :] for stored in sequences]
            alone = [sum(map(pool.is_alone, row)) for row in rows]
            if most_wanted([*map(Holding, growths, usable, alone)], pages) > free:
                return False
        return True

    def growth(self, most: int) -> int:
        """By how many of `most` tokens a sequence may grow at a time.

        Fewer where a window group can then hold a sequence of any length, and could not otherwise; never less than a
        page.
        """
        for group in self.groups:
            if group.window is not None:
                room = (group.num_pages - 1) * group.page_size - group.window - self._slack(group)
                most = min(most, room) if room >= group.page_size else most
        return most

    def _free(self, index: int, gone: Collection[str]) -> int:
        """Free pages of a group, if these sequences were gone."""
        rows = (self._get(cache_id) for cache_id in gone)
        pages = (page for stored in rows for page in stored.rows[index][stored.freed[index] :])
        return self._pools[index].free + self._pools[index].owned_by(pages)

    def _usable(self, index: int, stored: Stored) -> int:
        """Pages of the sequence that it can go on with: one to be written to that is another's too needs a copy."""
        return len(stored.rows[index]) - stored.freed[index] - self._must_copy(index, stored)

    def _most_pages(self, group: PageGroup, length: int, step: int) -> int:
        """Pages of a sequence of so many tokens that grew by at most `step` at a time."""
        if group.window is None:
            return group.pages(length)
        # The kept tokens may begin and end in the middle of a page.
        return group.pages(min(length, group.window + self._slack(group) + step + group.page_size))

    # Growth

    def reserve(self, cache_id: str, length: int) -> bool:
        """Make room for `length` tokens in all groups, beginning an unknown sequence: all of it or nothing.

        A page with other owners or a name that would be written to is replaced by a copy (see `take_copies`).

        Returns:
            False where a group has too few free pages; then nothing has changed.
        """
        stored = self._stored.get(cache_id)
        if stored is not None and self._is_there(stored, length):
            return True
        if stored is None:
            stored = Stored([[] for _ in self.groups], [0] * len(self.groups), 0, self._tick())
        plan = [self._wanted(index, stored, length) for index in range(len(self.groups))]
        if any(copy + new > pool.free for (copy, new), pool in zip(plan, self._pools, strict=True)):
            return False
        self._stored[cache_id] = stored
        for (copy, new), group, pool, row in zip(plan, self.groups, self._pools, stored.rows, strict=True):
            if copy:
                partial = stored.length // group.page_size
                row[partial] = pool.replace(row[partial])
            row.extend(pool.take() for _ in range(new))
        return True

    def _is_there(self, stored: Stored, length: int) -> bool:
        """Whether the rows hold `length` tokens as they are: nearly always, as a page is many steps' worth."""
        for index, group in enumerate(self.groups):
            if len(stored.rows[index]) * group.page_size < length:
                return False
            if length > stored.length and self._must_copy(index, stored):
                return False
        return True

    def _wanted(self, index: int, stored: Stored, length: int) -> tuple[bool, int]:
        """Whether the group must copy the partly filled page to reach `length`, and how many pages it adds."""
        group, row = self.groups[index], stored.rows[index]
        copy = length > stored.length and self._must_copy(index, stored)
        return copy, max(0, group.pages(length) - len(row))

    def _must_copy(self, index: int, stored: Stored) -> bool:
        """Whether the partly filled page, where there is one, has other owners or a name."""
        partial, filled = divmod(stored.length, self.groups[index].page_size)
        return filled > 0 and self._pools[index].is_fixed(stored.rows[index][partial])

    def take_copies(self) -> tuple[PageCopy, ...]:
        """The page copies that must be made before the next write to the pool; from now on they count as made.

        No target is a source, and no target appears twice: any order will do. Until they are taken, the sources stay
        out of the free list, and a target that is released takes its copy with it.
        """
        return tuple(
            PageCopy(group.name, source, target)
            for group, pool in zip(self.groups, self._pools, strict=True)
            for target, source in pool.take_copies()
        )

    def commit(self, cache_id: str, length: int) -> None:
        """Move the stored length on to `length`; window groups free the pages that no later query can see.

        Raises:
            UnknownSequence: no such sequence.
            RequestError: `length` is below the stored length or beyond what is reserved.
        """
        stored = self._get(cache_id)
        reserved = min(len(row) * group.page_size for row, group in zip(stored.rows, self.groups, strict=True))
        if not stored.length <= length <= reserved:
            raise RequestError(f"{length} is not in [{stored.length}, {reserved}]", param="length")
        stored.length = length
        stored.generation = self._tick()
        self._name(stored)
        if not stored.held:
            self._free_unseen(stored)

    def _free_unseen(self, stored: Stored) -> None:
        for index, group in enumerate(self.groups):
            for page in range(stored.freed[index], group.unseen(stored.length - self._slack(group))):
                self._pools[index].drop(stored.rows[index][page])
                stored.rows[index][page] = FREED
                stored.freed[index] += 1

    # The way back

    @contextmanager
    def holding(self, cache_ids: Collection[str]) -> Iterator[None]:
        """Within this context all pages of these stay, so that a truncation to their lengths of now always succeeds.

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
        """Give back the pages that are reserved beyond the stored length. Raises UnknownSequence."""
        stored = self._get(cache_id)
        for group, pool, row in zip(self.groups, self._pools, stored.rows, strict=True):
            while len(row) > group.pages(stored.length):
                pool.drop(row.pop())

    def can_truncate(self, cache_id: str, length: int) -> bool:
        """Whether all that the queries from position `length` on see is still there. Raises UnknownSequence."""
        stored = self._get(cache_id)
        return length == 0 or all(
            freed == 0 or freed * group.page_size <= length - (group.window or 0) + 1
            for group, freed in zip(self.groups, stored.freed, strict=True)
        )

    def truncate(self, cache_id: str, length: int) -> None:
        """Forget the tokens from position `length` on and give back their pages; at the stored length, do nothing.

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
        stored.names.cut(length // self.groups[0].page_size)
        self.trim(cache_id)

    def fork(self, source: str, target: str) -> None:
        """Begin `target` as a copy of `source` that shares all its stored pages, the partly filled one too.

        Raises:
            UnknownSequence: no such source.
            RequestError: the target exists.
        """
        stored = self._get(source)
        if target in self._stored:
            raise RequestError(f"the sequence {shown(target)} exists", param="target")
        rows = [row[: group.pages(stored.length)] for row, group in zip(stored.rows, self.groups, strict=True)]
        for row, freed, pool in zip(rows, stored.freed, self._pools, strict=True):
            for page in row[freed:]:
                pool.share(page)
        self._stored[target] = Stored(rows, list(stored.freed), stored.length, self._tick())

    def release(self, cache_id: str) -> None:
        """Forget the sequence and drop its pages; an unknown one is no error."""
        stored = self._stored.pop(cache_id, None)
        if stored is not None:
            stored.names.forget()
            self._drop_rows(stored)

    def check(self) -> None:
        """Assert that rows, lengths, reference counts, copies and free lists agree; every page is somewhere, once."""
        for index, (group, pool) in enumerate(zip(self.groups, self._pools, strict=True)):
            counts = [0] * group.num_pages
            for cache_id, stored in self._stored.items():
                row, freed = stored.rows[index], stored.freed[index]
                assert len(row) >= group.pages(stored.length), f"{cache_id}: {group.name} is shorter than its length"
                assert row[:freed] == [FREED] * freed, f"{cache_id}: {group.name} has lost count of its freed pages"
                assert freed * group.page_size <= max(0, stored.length), f"{cache_id}: {group.name} freed too much"
                for page in row[freed:]:
                    counts[page] += 1
            pool.check(counts)

    def _get(self, cache_id: str) -> Stored:
        try:
            return self._stored[cache_id]
        except KeyError:
            raise UnknownSequence(f"there is no sequence {shown(cache_id)}", param="cache_id") from None

    def _name(self, stored: Stored) -> None:
        full = stored.length // self.groups[0].page_size
        stored.names.give(self._pools, stored.rows, stored.freed, full)

    def _drop_rows(self, stored: Stored) -> None:
        for index, pool in enumerate(self._pools):
            # Backwards, so that the free list hands them out again in their old order.
            for page in reversed(stored.rows[index][stored.freed[index] :]):
                pool.drop(page)
            stored.rows[index].clear()
            stored.freed[index] = 0

    def _slack(self, group: PageGroup) -> int:
        return self._max_draft + group.page_size

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
