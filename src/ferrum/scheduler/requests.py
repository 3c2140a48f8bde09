"""The live requests: their choices, their ranks, the log-probabilities of their prompts, and their deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from ferrum.core.step import TokenLogprobs
from ferrum.core.types import Request, Sequence
from ferrum.scheduler.policy import Policy, Rank
from ferrum.scheduler.sequence import begin

SPARE_DEADLINES: Final = 256
"""Deadlines of ended requests kept in the heap, in addition to one for each live request."""


@dataclass(slots=True, eq=False)
class _Live:
    """A request, its choices that still hold pages or wait, and its prompt's log-probabilities so far."""

    request: Request
    rank: Rank
    sequences: list[Sequence] = field(default_factory=list)
    scores: list[TokenLogprobs] = field(default_factory=list)


class LiveRequests:
    """Every request from its arrival until its last choice has left.

    Args:
        policy: ranks them.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._live: dict[str, _Live] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for live in self._live.values() for sequence in live.sequences)

    def add(self, request: Request) -> list[Sequence]:
        """Add a request whose id is not live, and return its choices."""
        live = _Live(request, (*self._policy.rank(request), self._added))
        self._added += 1
        self._live[request.request_id] = live
        live.sequences += begin(request)
        if request.deadline is not None:
            heappush(self._deadlines, (request.deadline, request.request_id))
        if len(self._deadlines) > 2 * len(self._live) + SPARE_DEADLINES:
            self._deadlines = [each for each in self._deadlines if self._is_live(*each)]
            heapify(self._deadlines)
        return live.sequences

    def _is_live(self, deadline: float, request_id: str) -> bool:
        """Return whether a heap entry belongs to a live request: ended ones stay in the heap, and ids come back."""
        live = self._live.get(request_id)
        return live is not None and live.request.deadline == deadline

    def remove(self, sequence: Sequence) -> None:
        """Remove a choice, and with the last one the request."""
        live = self._live[sequence.request.request_id]
        live.sequences.remove(sequence)
        if not live.sequences:
            del self._live[sequence.request.request_id]

    def choices(self, request_id: str) -> list[Sequence]:
        """Return the live choices of a request; none if the request is unknown."""
        live = self._live.get(request_id)
        return list(live.sequences) if live is not None else []

    def due(self, now: float) -> list[str]:
        """Return the requests whose deadline is `now` or earlier, each once."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, request_id = heappop(self._deadlines)
            if self._is_live(deadline, request_id):
                due.append(request_id)
        return due

    def rank(self, sequence: Sequence) -> Rank:
        """Return the rank of a choice: unique, and always the same."""
        return (*self._live[sequence.request.request_id].rank, sequence.choice)

    def tenant(self, sequence: Sequence) -> str:
        """Return the name of the tenant queue."""
        return self._policy.tenant(sequence.request)

    def scores(self, sequence: Sequence) -> list[TokenLogprobs]:
        """Return the log-probabilities of the request's prompt so far; the caller appends to the list."""
        return self._live[sequence.request.request_id].scores

    def scored(self, sequence: Sequence) -> int:
        """Return how many prompt tokens need no log-probabilities any more; the first one never does."""
        return 1 + len(self.scores(sequence))
