"""Interfaces of what drafts tokens: proposers that look drafts up, and models that compute them.

How many draft tokens are verified is not decided here.
"""

from __future__ import annotations

from collections.abc import Sequence as Series
from dataclasses import dataclass
from typing import Protocol

from ferrum.scheduler.drafts import DraftRequest
from ferrum.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come next.

    Attributes:
        tokens: the draft tokens, in order.
        kind: drafts of one kind share an acceptance rate.
    """

    tokens: tuple[int, ...]
    kind: str


class Proposer(Protocol):
    """Looks drafts up. The tokens of a sequence only grow, and it is asked at every step.

    Attributes:
        only_predicted: it has drafts only for requests with a `prediction` or a `guidance`.
    """

    only_predicted: bool

    def propose(self, sequence: Sequence, max_tokens: int) -> Draft | None:
        """Return a draft of 1 to `max_tokens` tokens, or None; in O(1) amortised per token of the sequence."""

    def forget(self, sequence: Sequence) -> None:
        """Drop the state of a sequence that has ended."""


class DraftComputer(Protocol):
    """Computes drafts, for several sequences at a time."""

    def limit(self, sequence: Sequence) -> int:
        """Return how many tokens it could draft for the sequence now."""

    def reading_seconds(self, sequence: Sequence) -> float:
        """Predict the seconds of reading the sequence before its first draft token."""

    def seconds(self, sequences: int) -> float:
        """Predict the seconds of one draft token for each of that many sequences."""

    def draft(self, requests: Series[DraftRequest]) -> list[tuple[int, ...]]:
        """Return a draft for each request: as many tokens as it asks for, or fewer."""

    def forget(self, sequence: Sequence) -> None:
        """Drop the state of a sequence that has ended."""
