"""Snapshots of states for the prefix cache: where they are taken, what they are called, and which one a prompt finds.

Pages are found at any length, a state only where a snapshot was taken. So spans end there, sparsely: at the starts of
messages, else at the last full page of a prompt, at powers of two of pages, and where choices of a request part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from ferrum.cache.pool import PageHash
from ferrum.cache.state_slots import StateSlots
from ferrum.core.policy_config import POLICY
from ferrum.scheduler.sequence import Sequence, shared_length

NameOf = Callable[[Sequence, int], PageHash | None]
"""Returns the name of a sequence's state after this many tokens; None where it has none."""


LEAST_PAGES: Final = 16
"""The smallest power of two of pages with a snapshot. An earlier one saves less than the step that it adds costs."""


def snapshot_lengths(sequence: Sequence, page_size: int, *, shares: bool) -> tuple[int, ...]:
    """Return the lengths of a sequence at which its state is to be named, ascending.

    Args:
        sequence: the sequence.
        page_size: tokens per page.
        shares: whether other requests can find its states; else the other choices of its request alone do.
    """
    lengths = {shared_length(sequence)}
    if shares:
        request, last = sequence.request, len(sequence.request.prompt) - 1
        lengths.update(at for at in request.boundaries if 0 < at <= last)
        last_page = last // page_size * page_size
        if request.inputs or max(lengths) < last_page:
            lengths.add(last_page)
        doubled = LEAST_PAGES * page_size
        while doubled <= last:
            lengths.add(doubled)
            doubled *= 2
    return tuple(sorted(lengths - {0}))


def until_snapshot(sequence: Sequence, count: int) -> int:
    """Return how many of the sequence's next tokens a span takes, so that it ends at the next snapshot."""
    start, lengths = sequence.computed + sequence.ahead, sequence.snapshot_lengths
    index = bisect_right(lengths, start)
    return min(count, lengths[index] - start) if index < len(lengths) else count


class Snapshots:
    """The names of states, and searches by them.

    Args:
        slots: of the page table.
        page_size: tokens per page.
        name_of: names states by the tokens before them.
        capacity: number of full pages after which partial ones are remembered.
    """

    def __init__(
        self, slots: StateSlots, page_size: int, name_of: NameOf, capacity: int = POLICY.max_partial_pages
    ) -> None:
        self._slots, self._page_size, self._name_of, self._capacity = slots, page_size, name_of, capacity
        self._lengths: OrderedDict[PageHash, int] = OrderedDict()

    def take(self, sequence: Sequence, previous: PageHash, length: int) -> None:
        """Name the state of a sequence that has this length.

        Args:
            previous: hash of the full page before, or of the root.
        """
        name = self._name_of(sequence, length)
        if name is None:
            return
        self._slots.name(sequence.cache_id, length, name, sequence.tenant)
        rest = length % self._page_size
        if rest:
            self._lengths[previous] = self._lengths.get(previous, 0) | 1 << rest
            self._lengths.move_to_end(previous)
            if len(self._lengths) > self._capacity:
                self._lengths.popitem(last=False)

    def longest(
        self, sequence: Sequence, previous: Iterable[PageHash], most: int, has_pages: Callable[[int], bool]
    ) -> tuple[int, PageHash] | None:
        """Return the longest prefix of at most `most` tokens that has a snapshot and pages, and its name.

        Args:
            sequence: the sequence.
            previous: hashes before each page that begins within them, the last page first.
            most: the limit.
            has_pages: returns whether a prefix of this many tokens has its pages. Those before a window may be gone.
        """
        count = most // self._page_size
        for before in previous:
            begin = count * self._page_size
            lengths = self._lengths.get(before, 0) & (1 << min(most - begin, self._page_size - 1) + 1) - 1
            while lengths:
                rest = lengths.bit_length() - 1
                name = self._name_of(sequence, begin + rest)
                if name is not None and self._slots.has(name) and has_pages(begin + rest):
                    return begin + rest, name
                lengths ^= 1 << rest
            if begin and self._slots.has(before) and has_pages(begin):
                return begin, before
            count -= 1
        return None
