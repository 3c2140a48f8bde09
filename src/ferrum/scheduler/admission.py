"""How long outputs become: what is known of their ends before they come.

A choice that no token can stop ends at its limit. Others are thought to end where half of those do that got as far: of
the choices that have ended, and of those that run or ran into their limit, which would have come so far at least. But
for these the first to end, the short ones, would speak for all.

Who is let in by the pages that there are, and for how long a refusal stands.

A newcomer is let in when it and all that are served before it will find their pages to the end, as far as one can
tell. Once refused, it need not be asked about at every step: while everybody stays, what they will need only grows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Series
from dataclasses import dataclass
from typing import Final

from ferrum.cache.peak_pages import Growth
from ferrum.core.types import FinishReason, Sequence
from ferrum.scheduler.page_protocol import Pages
from ferrum.scheduler.queues import Ranked
from ferrum.scheduler.requests import LiveRequests

WINDOW: Final = 64
"""Ended choices that are remembered."""

ROUNDING: Final = 1e-9
"""By which a half may be missed that is one."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A choice of so many tokens, and whether it ended by itself."""

    length: int
    by_itself: bool


@dataclass(frozen=True, slots=True)
class Survival:
    """The share of choices that go on beyond a length: a step down at each of `lengths`, in ascending order.

    Attributes:
        shares: that go on beyond these.
    """

    lengths: tuple[int, ...]
    shares: tuple[float, ...]

    def half(self, generated: int) -> int | None:
        """The length at which half of those have ended that got as far; None where it is not known."""
        passed = bisect_right(self.lengths, generated)
        now = self.shares[passed - 1] if passed else 1.0
        later = zip(self.lengths[passed:], self.shares[passed:], strict=True)
        return next((length for length, share in later if 2 * share <= now + ROUNDING), None)


def survival(ends: Iterable[int], others: Iterable[int]) -> Survival:
    """The product-limit estimate of Kaplan and Meier, "Nonparametric Estimation from Incomplete Observations" (1958).

    Args:
        ends: lengths of choices that have ended by themselves.
        others: lengths of which is known only that these choices got as far.
    """
    lengths, known = sorted(ends), sorted(others)
    share, shares = 1.0, []
    for index, length in enumerate(lengths):
        as_long = len(lengths) - index + len(known) - bisect_left(known, length)
        share *= 1 - 1 / as_long
        shares.append(share)
    return Survival(tuple(lengths), tuple(shares))


class OutputLengths:
    """Learns from choices that have ended, and from those that run, how many tokens others will generate.

    The history as a forecast, and only the part of it that has got as far as the choice in question, are those of Gong
    et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees" (ASPLOS 2025).
    """

    def __init__(self) -> None:
        self._ended: deque[_Ended] = deque(maxlen=WINDOW)
        self._known = survival((), ())
        self._longest = 0

    def learn(self, sequence: Sequence) -> None:
        """Take in a choice that has ended; what failed, never began or could but reach its limit tells nothing."""
        by_itself = sequence.finish not in (FinishReason.LENGTH, FinishReason.DEADLINE)
        if sequence.generated and sequence.finish is not FinishReason.ERROR and (by_itself or _can_stop(sequence)):
            self._ended.append(_Ended(sequence.generated, by_itself))

    def watch(self, running: Iterable[Sequence]) -> None:
        """Take in how far those have come that run: what `to_come` tells is of this moment."""
        others = [each.length for each in self._ended if not each.by_itself]
        others += [each.generated for each in running if _can_stop(each)]
        self._known = survival([each.length for each in self._ended if each.by_itself], others)
        self._longest = max((each.length for each in self._ended), default=0)

    def to_come(self, sequence: Sequence, context: int) -> int:
        """How many tokens the choice is still to generate, as far as one can tell.

        Args:
            context: most tokens of prompt and output together.
        """
        limit = context - len(sequence.tokens)
        if sequence.request.params.max_tokens is not None:
            limit = min(limit, sequence.request.params.max_tokens - sequence.generated)
        if not _can_stop(sequence):
            return limit
        half = self._known.half(sequence.generated)
        if half is None:  # most are not known to end: as far as the longest did, or as long again as by now
            half = max(self._longest, sequence.generated + len(sequence.tokens))
        return min(limit, half - sequence.generated)


def _can_stop(sequence: Sequence) -> bool:
    """Whether anything but its limit may end it."""
    return bool(sequence.request.stop_token_ids) or sequence.request.params.max_tokens is None


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
