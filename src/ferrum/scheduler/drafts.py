"""What the scheduler asks of a drafter. Draft tokens are verified in the span that would have run anyway."""

from __future__ import annotations

from collections.abc import Sequence as Series
from dataclasses import dataclass
from typing import Final, Protocol

from ferrum.core.snapshots import SpeculationCounts
from ferrum.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A sequence to draft for, and the largest useful number of draft tokens."""

    sequence: Sequence
    limit: int


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The step that the draft tokens join.

    Attributes:
        rows: tokens of the step without drafts.
        context_tokens: sum of the `context_cost` of its spans.
        budget: largest number of draft tokens.
    """

    rows: int
    context_tokens: int
    budget: int


class Drafter(Protocol):
    """Source of draft tokens, asked at most once per step.

    Attributes:
        only_predicted: it drafts only for requests with a `prediction` or a `guidance`.
    """

    only_predicted: bool

    @property
    def counts(self) -> SpeculationCounts:
        """Counts of verified draft tokens."""

    def draft(self, requests: Series[DraftRequest], room: StepLoad) -> list[tuple[int, ...]]:
        """Return draft tokens for each request, possibly none; those beyond a limit or the budget are cut."""

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Take in how many draft tokens of the sequence were verified, and how many of them were accepted."""

    def forget(self, sequence: Sequence) -> None:
        """Drop the state of a sequence that has ended, if it was asked to draft for it."""


class NoDrafts:
    """Drafter without draft tokens."""

    counts: Final = SpeculationCounts()
    only_predicted = True

    def draft(self, requests: Series[DraftRequest], room: StepLoad) -> list[tuple[int, ...]]:  # noqa: ARG002 - a drafter's signature
        return [()] * len(requests)

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        pass

    def forget(self, sequence: Sequence) -> None:
        pass
