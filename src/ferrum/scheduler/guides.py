"""What the scheduler asks of a guide, which limits the next tokens of a sequence. Masks are computed elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from ferrum.core.errors import FerrumError
from ferrum.core.guidance import Guidance
from ferrum.core.step import PendingMasks

UNLIMITED: Final = 1 << 62
"""A number of tokens that no sequence reaches."""


class Guide(Protocol):
    """The limits on one sequence's next tokens. No method computes a mask or waits for one.

    An unconstrained guide need not be given each token: `trigger_tokens` and `unconstrained_until` say which ones end
    that.
    """

    @property
    def taken(self) -> int:
        """Number of generated tokens that the guide has been given."""

    @property
    def unconstrained(self) -> bool:
        """Whether every next token is allowed, so that a span needs no masks."""

    @property
    def trigger_tokens(self) -> frozenset[int]:
        """The tokens after which it may constrain again."""

    @property
    def unconstrained_until(self) -> int:
        """The number of generated tokens at which it constrains again."""

    def advance(self, tokens: tuple[int, ...]) -> None:
        """Take in generated tokens, all in order."""

    def masks(self, drafts: tuple[int, ...]) -> PendingMasks:
        """Begin to compute the masks of the rows after the newest token and after each draft token."""

    def forced(self, limit: int) -> tuple[int, ...]:
        """Return up to `limit` tokens that the grammar leaves no alternative to, if they are known already."""

    def close(self) -> None:
        """Free what the guide holds; its sequence has ended."""


StartGuide: TypeAlias = Callable[[], Guide]
"""Returns a guide of a new sequence, whose grammar is compiled."""


class Guides(Protocol):
    """Makes guides. Grammars are compiled outside the engine's thread."""

    def compile(
        self, guidance: Guidance, ends: tuple[int, ...], done: Callable[[StartGuide | FerrumError], None]
    ) -> Callable[[], object]:
        """Compile the grammar without waiting for it; return what cancels that, if it has not begun.

        Args:
            guidance: the limits of a request.
            ends: its end tokens; empty: those of the tokenizer.
            done: called once, from any thread, with what starts guides or with the error; never if it is cancelled.
        """

    def close(self) -> None:
        """End the threads. Masks that are still awaited raise StepError."""
