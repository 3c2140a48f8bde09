"""Choices of one request: the prompt but for its last token is computed once, and each takes it from there."""

from __future__ import annotations

from collections.abc import Iterator

from ferrum.core.types import FinishReason, Sequence
from ferrum.scheduler.live import LiveRequests
from ferrum.scheduler.plan import Pages
from ferrum.scheduler.prefixes import Prefixes
from ferrum.scheduler.queues import Ranked, Waiting
from ferrum.scheduler.sequence import shared_length


class Siblings:
    """Hands the prompt of a request from choice to choice.

    Args:
        live, running, waiting: the scheduler's books; an heir changes from waiting to running.
        pages: the page table.
        prefixes: told what a choice begins with.
    """

    def __init__(self, live: LiveRequests, running: Ranked, waiting: Waiting, pages: Pages, prefixes: Prefixes) -> None:
        self._live = live
        self._running = running
        self._waiting = waiting
        self._pages = pages
        self._prefixes = prefixes

    def source(self, sequence: Sequence) -> Sequence | None:
        """A running choice that has the whole prompt which this one would take from it."""
        shared = shared_length(sequence)
        return next((each for each in self._others(sequence) if self._can_share(each, shared)), None)

    def are_computing(self, sequence: Sequence) -> bool:
        """Whether a running choice is still at work on that prompt."""
        return any(each.computed < shared_length(each) for each in self._others(sequence))

    def share(self, source: Sequence, target: Sequence) -> None:
        """Begin the target with the prompt that the source has."""
        self._pages.fork(source.cache_id, target.cache_id)
        self._pages.truncate(target.cache_id, shared_length(target))
        target.computed = shared_length(target)
        self._prefixes.inherit(source, target)

    def bequeath(self, sequence: Sequence) -> None:
        """Before the last choice that has the prompt goes, hand it, and the place, to one that waits."""
        if sequence.finish is FinishReason.ERROR or not self._can_share(sequence, shared_length(sequence)):
            return
        if self.source(sequence) is not None:
            return
        siblings = self._live.choices(sequence.request.request_id)
        heir = next((each for each in siblings if each.finish is None and each in self._waiting), None)
        if heir is not None:
            self.share(sequence, heir)
            self._waiting.remove(heir)
            self._running.add(heir)

    def _others(self, sequence: Sequence) -> Iterator[Sequence]:
        """The choices that run, where choices have anything in common; an ended one is none of them."""
        siblings = self._live.choices(sequence.request.request_id) if shared_length(sequence) else ()
        return (each for each in siblings if each.finish is None and each in self._running)

    def _can_share(self, source: Sequence, shared: int) -> bool:
        return source.computed >= shared > 0 and self._pages.can_truncate(source.cache_id, shared)
