"""Who is let in by the pages that there are, and for how long a refusal stands.

A newcomer is let in when it and all that are served before it will find their pages to the end, as far as one can
tell. Once refused, it need not be asked about at every step: while everybody stays, what they will need only grows.
"""

from __future__ import annotations

from collections.abc import Sequence as Series
from dataclasses import dataclass

from ferrum.cache.peak_pages import Growth
from ferrum.core.types import Sequence
from ferrum.scheduler.live import LiveRequests
from ferrum.scheduler.outputs import OutputLengths
from ferrum.scheduler.plan import Pages
from ferrum.scheduler.queues import Ranked


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Who was refused, and the part of the pages that was in use."""

    sequence: Sequence
    usage: float


class Newcomers:
    """Judges sequences that have begun in the page table and do not run yet.

    Args:
        live, running: the scheduler's books.
        pages: the page table.
        outputs: how long answers become.
        growth: most tokens by which a sequence grows at a time.
        context: most tokens of prompt and output together.
    """

    def __init__(
        self, live: LiveRequests, running: Ranked, pages: Pages, outputs: OutputLengths, *, growth: int, context: int
    ) -> None:
        self._live = live
        self._running = running
        self._pages = pages
        self._outputs = outputs
        self._growth = growth
        self._context = context
        self._refusal: _Refusal | None = None

    def fits(self, newcomer: Sequence, gone: Series[Sequence] = (), *, held: str | None = None) -> bool:
        """Whether there are pages for its tokens, and it and all that are served before it find theirs to the end.

        As far as one can tell: those that are served after it will make room.

        Args:
            gone: running sequences that are thought away.
            held: the sequence of the page table that it would be; None: its own.
        """
        cache_id = newcomer.cache_id if held is None else held
        left = {each.cache_id for each in gone}
        rank = self._live.rank(newcomer)
        before = [each for each in self._running if self._live.rank(each) < rank and each.cache_id not in left]
        self._outputs.watch(self._running)
        growths = [
            Growth(
                cache_id if each is newcomer else each.cache_id,
                len(each.tokens),
                self._outputs.to_come(each, self._context),
            )
            for each in (*before, newcomer)
        ]
        if not before:  # alone in its turn: all that runs will make room
            growths = [Growth(cache_id, len(newcomer.tokens), 0)]
        return self._pages.lasts(growths, self._growth, left)

    def refuse(self, newcomer: Sequence) -> None:
        """There was no room for it, and will be none before somebody leaves, or a page becomes free."""
        self._refusal = _Refusal(newcomer, self._pages.usage)

    def reconsider(self) -> None:
        """Somebody has left."""
        self._refusal = None

    def is_refused(self, newcomer: Sequence | None) -> bool:
        """Whether nothing has changed since it was refused."""
        refusal = self._refusal
        return refusal is not None and refusal.sequence is newcomer and self._pages.usage >= refusal.usage
