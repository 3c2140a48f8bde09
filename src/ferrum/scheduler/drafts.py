"""What the scheduler asks of whoever guesses tokens. Guesses are verified in the span that would have run anyhow."""

from __future__ import annotations

from collections.abc import Sequence as Series
from dataclasses import dataclass
from typing import Final, Protocol

from ferrum.core.snapshots import SpeculationCounts
from ferrum.core.types import Sequence


@dataclass(frozen=True, slots=True)
class Wish:
    """A sequence whose next token is to be sampled, and how many guesses after it can come true at most."""

    sequence: Sequence
    limit: int


@dataclass(frozen=True, slots=True)
class Room:
    """The step that the guesses join.

    Attributes:
        rows: tokens that it has without them.
        context_tokens: tokens that its sequences have stored, by what they cost (`costs.weighed`), added up.
        budget: guesses that it takes at most.
    """

    rows: int
    context_tokens: int
    budget: int


class Drafter(Protocol):
    """Guesses tokens. It is asked at most once a step, and told how its guesses fared."""

    @property
    def counts(self) -> SpeculationCounts:
        """What was verified so far."""
        ...

    def may_guess(self, sequence: Sequence) -> bool:
        """Whether it could ever guess anything for the sequence: a step in which it cannot does not ask."""
        ...

    def draft(self, wishes: Series[Wish], room: Room) -> list[tuple[int, ...]]:
        """Guesses for each wish, none where there is nothing to guess; those beyond its limit or the budget are cut."""
        ...

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """So many guesses for the sequence were verified, and so many of them were right."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...


class NoDrafts:
    """Guesses nothing."""

    counts: Final = SpeculationCounts()

    def may_guess(self, sequence: Sequence) -> bool:  # noqa: ARG002 - a drafter's signature
        """See `Drafter`."""
        return False

    def draft(self, wishes: Series[Wish], room: Room) -> list[tuple[int, ...]]:  # noqa: ARG002 - a drafter's signature
        """See `Drafter`."""
        return [()] * len(wishes)

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """See `Drafter`."""

    def forget(self, sequence: Sequence) -> None:
        """See `Drafter`."""
