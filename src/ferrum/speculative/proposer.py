"""What guesses tokens: something that looks them up, at no cost, or a model that computes them."""

from __future__ import annotations

from collections.abc import Sequence as Series
from dataclasses import dataclass
from typing import Protocol

from ferrum.core.types import Sequence
from ferrum.scheduler.drafts import Wish


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next.

    Attributes:
        tokens: at least one.
        kind: guesses of one kind are about equally often right.
    """

    tokens: tuple[int, ...]
    kind: str


class Proposer(Protocol):
    """Looks guesses up. A sequence's tokens only grow, and it is asked about it again and again."""

    def knows(self, sequence: Sequence) -> bool:
        """Whether there is anything to look up for the sequence, now or later."""
        ...

    def look(self, sequence: Sequence, most: int) -> Guess | None:
        """At most `most` tokens that may follow those of the sequence, or None; in O(1) amortised per token of it."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...


class Drafts(Protocol):
    """Computes guesses, for several sequences at a time."""

    @property
    def spent(self) -> float:
        """Seconds that guessing has taken so far, by what its steps usually take."""
        ...

    @property
    def spent_reading(self) -> float:
        """Seconds that reading has taken so far, of which guesses come later."""
        ...

    def unread(self, sequence: Sequence) -> int:
        """How many tokens of the sequence have to be read before the first guess."""
        ...

    def limit(self, sequence: Sequence) -> int:
        """How many tokens it could guess for the sequence now."""
        ...

    def draft(self, wishes: Series[Wish]) -> list[tuple[int, ...]]:
        """As many guesses as each wish asks for, or fewer."""
        ...

    def seconds(self, sequences: int) -> float:
        """How long a guess for so many sequences takes."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...
