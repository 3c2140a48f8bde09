"""Proposers with fixed drafts, so that draft lengths depend on costs and acceptance only."""

from __future__ import annotations

from ferrum.core.types import Sequence
from ferrum.speculative.proposer import Draft


class Always:
    """A proposer of the same tokens for every sequence."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def may_propose(self, sequence: Sequence) -> bool:
        return True

    def propose(self, sequence: Sequence, max_tokens: int) -> Draft | None:
        return Draft(self.tokens[:max_tokens], "always")

    def forget(self, sequence: Sequence) -> None:
        self.tokens = ()
