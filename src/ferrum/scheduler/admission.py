"""Admission of waiting requests by free pages, and by free slots of states.

A waiting request is admitted if its own tokens fit and the sequences served before it have pages to grow. What turns
out too little is corrected by preemption, in `scheduler.py`. Slots are not: every running sequence has all it may need.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Series
from dataclasses import dataclass
from typing import TypeAlias

from ferrum.cache.page_table import PageTable
from ferrum.core.policy_config import POLICY
from ferrum.scheduler.queues import Ranked
from ferrum.scheduler.sequence import Sequence

GrowthReserve: TypeAlias = Callable[[Sequence, int], int]
"""Maps a sequence and the context length to the tokens of growth to reserve for it."""


def growth_reserve(sequence: Sequence, context: int) -> int:
    """Return how many tokens of growth to reserve for a sequence when another is admitted.

    A sequence without stop tokens certainly reaches its limit. Half of the rest is reserved, because such sequences end
    at different times and then return their pages. Of others half of their present length is reserved.

    Args:
        sequence: a running sequence, or the one to be admitted.
        context: largest number of prompt and output tokens together.
    """
    request = sequence.request
    left = context - len(sequence.tokens)
    if request.params.max_tokens is not None:
        left = min(left, request.params.max_tokens - sequence.generated)
        if not request.stop_token_ids:
            return left // 2
    # Its length bounds the reserve too, or a pool for a few short sequences would admit only one of them.
    return min(left, len(sequence.tokens) // 2, POLICY.admission_growth)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused sequence, and the share of the pages in use and the free slots of states at that time."""

    sequence: Sequence
    usage: float
    free_slots: int


class Admission:
    """Decision whether a waiting sequence, already known to the page table, may run.

    Args:
        running: the sequences that run.
        pages: the page table.
        growth: largest number of tokens by which a sequence grows in one step.
        context: largest number of prompt and output tokens together.
        reserve: growth to reserve for each sequence; default: `growth_reserve`.

    Attributes:
        refusal: the last one; None once a sequence has left.
    """

    def __init__(
        self,
        running: Ranked,
        pages: PageTable,
        *,
        growth: int,
        context: int,
        reserve: GrowthReserve | None = None,
    ) -> None:
        self._running = running
        self._pages = pages
        self._growth = growth
        self._context = context
        self._reserve = reserve or growth_reserve
        self.refusal: Refusal | None = None

    def fits(self, waiting: Sequence, gone: Series[Sequence] = (), *, held: str | None = None) -> bool:
        """Return whether the free pages are enough for the sequence and the growth of those served before it.

        A sequence without any before it needs pages for its own tokens only: all others give way to it.

        Args:
            waiting: the sequence to be admitted.
            gone: running sequences whose pages count as free.
            held: page table sequence that stands for `waiting`; default: its own.
        """
        cache_id = waiting.cache_id if held is None else held
        released = {each.cache_id for each in gone}
        before = [each for each in self._running if each.rank < waiting.rank and each.cache_id not in released]
        lengths = {each.cache_id: len(each.tokens) + self._reserve(each, self._context) for each in before}
        lengths[cache_id] = len(waiting.tokens) + (self._reserve(waiting, self._context) if before else 0)
        if not self._pages.can_grow(lengths, self._growth, released):
            return False
        states = self._pages.states
        if states is None:
            return True
        return states.suffice([cache_id, *(each.cache_id for each in self._running if each not in gone)], released)

    def refuse(self, waiting: Sequence) -> None:
        """Remember a refusal: it stands until a sequence leaves, or a page or a slot becomes free."""
        self.refusal = Refusal(waiting, self._pages.usage, self._pages.free_slots)

    def is_refused(self, waiting: Sequence | None) -> bool:
        """Return whether the refusal of this sequence still stands."""
        refusal, pages = self.refusal, self._pages
        if refusal is None or refusal.sequence is not waiting:
            return False
        return pages.usage >= refusal.usage and pages.free_slots <= refusal.free_slots
