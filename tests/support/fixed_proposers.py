"""Proposers that look at nothing: how many of their guesses are verified is up to costs and to how they fared."""

from __future__ import annotations

from ferrum.core.types import Sequence
from ferrum.speculative.proposer import Guess


class Always:
    """Guesses the same tokens for everyone."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def knows(self, sequence: Sequence) -> bool:
        return True

    def look(self, sequence: Sequence, most: int) -> Guess | None:
        return Guess(self.tokens[:most], "always")

    def forget(self, sequence: Sequence) -> None:
        self.tokens = ()
