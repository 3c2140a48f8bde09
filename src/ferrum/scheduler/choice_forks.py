"""Sharing of a prompt between the choices of one request, by forks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ferrum.cache.page_table import PageTable
from ferrum.core.types import FinishReason
from ferrum.scheduler.queues import LiveRequests, Ranked, WaitingQueue
from ferrum.scheduler.sequence import Sequence, shared_length

if TYPE_CHECKING:
    from ferrum.scheduler.prefix_sharing import PrefixSharing


class ChoiceForks:
    """Forks of a request's prompt: all of it except the last token is computed once for all choices.

    Args:
        live, running, waiting: the scheduler's state; a choice that takes over moves from waiting to running.
        pages: the page table.
        prefixes: sets the hashes of forks.
    """

    def __init__(
        self, live: LiveRequests, running: Ranked, waiting: WaitingQueue, pages: PageTable, prefixes: PrefixSharing
    ) -> None:
        self._live = live
        self._running = running
        self._waiting = waiting
        self._pages = pages
        self._prefixes = prefixes

    def source(self, sequence: Sequence) -> Sequence | None:
        """Return a running choice of the same request that has the whole prompt, or None."""
        shared = shared_length(sequence)
        return next((each for each in self._others(sequence) if self._can_share(each, shared)), None)

    def are_computing(self, sequence: Sequence) -> bool:
        """Return whether a running choice still computes the prompt."""
        return any(each.computed < shared_length(each) for each in self._others(sequence))

    def fork(self, source: Sequence, target: Sequence) -> None:
        """Begin the target with the source's prompt."""
        self._pages.fork(source.cache_id, target.cache_id)
        self._pages.truncate(target.cache_id, shared_length(target))
        target.computed = shared_length(target)
        self._prefixes.inherit(source, target)

    def hand_over(self, sequence: Sequence) -> None:
        """Fork an ending choice to a waiting one, which takes its place, if no other choice has the prompt."""
        if sequence.finish is FinishReason.ERROR or not self._can_share(sequence, shared_length(sequence)):
            return
        if self.source(sequence) is not None:
            return
        choices = self._live.choices(sequence.request.request_id)
        heir = next((each for each in choices if each.finish is None and each in self._waiting), None)
        if heir is not None:
            self.fork(sequence, heir)
            self._waiting.remove(heir)
            self._running.add(heir)

    def _others(self, sequence: Sequence) -> Iterator[Sequence]:
        """Yield the running choices of the request that have not ended, if choices share anything."""
        choices = self._live.choices(sequence.request.request_id) if shared_length(sequence) else ()
        return (each for each in choices if each.finish is None and each in self._running)

    def _can_share(self, source: Sequence, shared: int) -> bool:
        return source.computed >= shared > 0 and self._pages.can_truncate(source.cache_id, shared)
