"""What the scheduler asks of a guide, which limits the next tokens of a sequence. Masks are computed elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ferrum.core.errors import FerrumError
from ferrum.core.guidance import Guidance
from ferrum.core.step import PendingMasks


class Guide(Protocol):
    """The limits on one sequence's next tokens. No method computes a mask or waits for one.

    Attributes:
        watched: while the guide rests, the tokens that end its rest.
        rests_until: while it rests, the number of generated tokens at which its rest ends.
    """

    watched: frozenset[int]
    rests_until: int

    @property
    def resting(self) -> bool:
        """Whether every next token is allowed, so that a span needs no masks."""

    def advance(self, tokens: tuple[int, ...]) -> None:
        """Take in the tokens that were generated."""

    def masks(self, drafts: tuple[int, ...]) -> PendingMasks:
        """Begin to compute the masks of the rows after the newest token and after each draft token."""

    def forced(self, limit: int) -> tuple[int, ...]:
        """Return up to `limit` tokens that the grammar leaves no alternative to, if they are known already."""

    def close(self) -> None:
        """Free what the guide holds; its sequence has ended."""


class Guides(Protocol):
    """Makes guides. Grammars are compiled outside the engine's thread."""

    def compile(self, guidance: Guidance, done: Callable[[FerrumError | None], None]) -> None:
        """Compile the grammar; call `done`, from any thread, when guides for it can be started, or with the error."""

    def start(self, guidance: Guidance) -> Guide:
        """Return a guide of a new sequence. Its grammar is compiled."""
