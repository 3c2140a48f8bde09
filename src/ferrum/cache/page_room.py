"""Room in the pool: how many pages sequences need, and whether the free ones are enough. Host integers only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ferrum.cache.page_hashes import SequenceHashes
from ferrum.cache.pool import PageGroup, PagePool, capacity_tokens
from ferrum.cache.state_slots import StateSlots
from ferrum.core.config import PAGE_SIZE
from ferrum.core.errors import UnknownSequence
from ferrum.core.values import shown

FREED: Final = -1
"""Row entry of a page whose tokens have left the window for good."""


@dataclass(slots=True)
class Stored:
    """State of one sequence: a row per group, and the number of leading FREED entries of each row.

    Attributes:
        room: tokens that the rows hold as they are. After any change but growth it is at most the length, until the
            next `reserve` has looked at the partly filled page.
        changes: a number that every change of the rows raises, so that copies of them can be kept. No earlier sequence
            of this id had it.
        held: no page leaves a window.
    """

    rows: list[list[int]]
    freed: list[int]
    length: int
    generation: int
    hashes: SequenceHashes = field(default_factory=SequenceHashes)
    room: int = 0
    changes: int = field(init=False)
    held: bool = False

    def __post_init__(self) -> None:
        self.changes = self.generation


class PageRoom:
    """Pools of all groups and the stored sequences, with questions about room.

    Args:
        groups: with distinct names; none if no layer stores anything per token. Shared prefixes need one page size.
        max_draft: longest draft. A window group keeps this many tokens and one page more than the next query sees, so
            that a truncation by a draft always succeeds.
        states: slots of the states of sequences; None if no layer has one.
        unpaged: tokens that the executor holds where no group limits them.

    Attributes:
        page_size: tokens per page, of the first group.
        capacity_tokens: tokens that the whole pool holds.
    """

    def __init__(
        self, groups: Iterable[PageGroup], *, max_draft: int, states: StateSlots | None = None, unpaged: int = 0
    ) -> None:
        self.groups = tuple(groups)
        self.states = states
        self.page_size = next((group.page_size for group in self.groups), PAGE_SIZE)
        self.capacity_tokens = capacity_tokens(self.groups) if self.groups else unpaged
        self._pools = tuple(PagePool(group.num_pages) for group in self.groups)
        self._index = {group.name: index for index, group in enumerate(self.groups)}
        self._max_draft = max_draft
        self._stored: dict[str, Stored] = {}
        assert len(self._index) == len(self.groups), "groups need distinct names"
        assert all(group.num_pages >= 0 and group.page_size > 0 for group in self.groups)

    def free(self, group: str) -> int:
        """Return the number of free pages of the group."""
        return self._pools[self._index[group]].free

    @property
    def free_slots(self) -> int:
        """Free slots of states; 0 without states."""
        return 0 if self.states is None else self.states.free

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

    def _must_copy(self, index: int, stored: Stored) -> bool:
        """Return whether the partly filled page, if any, is shared or hashed."""
        partial, filled = divmod(stored.length, self.groups[index].page_size)
        return filled > 0 and self._pools[index].is_fixed(stored.rows[index][partial])

    def _get(self, cache_id: str) -> Stored:
        try:
            return self._stored[cache_id]
        except KeyError:
            raise UnknownSequence(f"there is no sequence {shown(cache_id)}", param="cache_id") from None

    def _slack(self, group: PageGroup) -> int:
        return self._max_draft + group.page_size
