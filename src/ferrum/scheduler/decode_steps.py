"""The fast path of planning: while nothing else is to do, the next step is the last one advanced by a token."""

from __future__ import annotations

from collections.abc import Collection

from ferrum.cache.page_table import PageTable
from ferrum.core.step import StepBatch, is_plain
from ferrum.core.types import Sequence
from ferrum.scheduler.sequence import make_span
from ferrum.scheduler.step_plan import Plan


class DecodeSteps:
    """Plans of steps in which the same sequences decode.

    The scheduler begins them when a step decodes all that is running, and ends them when anything but a token happens
    to a sequence.

    Args:
        pages: the page table.

    Attributes:
        sequences: those that decode; empty if the next step must be planned in full.
    """

    def __init__(self, pages: PageTable) -> None:
        self._pages = pages
        self.sequences: tuple[Sequence, ...] = ()
        self._cache_ids: list[str] = []
        self._tenant = ""

    def begin(self, sequences: tuple[Sequence, ...], tenants: Collection[str]) -> None:
        """Go on from a step that decodes these sequences, unless they belong to several tenant queues.

        Args:
            sequences: all running sequences, in the order of the step.
            tenants: their tenant queues.
        """
        self.sequences = sequences if len(tenants) == 1 else ()
        self._tenant = next(iter(tenants))
        self._cache_ids = [sequence.cache_id for sequence in sequences]

    def end(self) -> None:
        """Plan the next step in full."""
        self.sequences = ()

    def plan(self) -> Plan | None:
        """Return the next step; None if a sequence is about to end or has more to ask, or if pages run out."""
        spans, starts = [], []
        for sequence in self.sequences:
            known = len(sequence.tokens) + sequence.pending
            if known >= sequence.limit:
                return None
            # A sequence that has generated a token has all log-probabilities of its prompt.
            spans.append(make_span(sequence, 1, scored=len(sequence.request.prompt)))
            starts.append(known - 1)
        if not is_plain(spans) or not self._pages.next_tokens.reserve(self._cache_ids, starts):
            return None
        return Plan(StepBatch(tuple(spans)), self.sequences, sum(starts), self._tenant)
