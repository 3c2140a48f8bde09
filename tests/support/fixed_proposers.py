"""Proposers with fixed drafts, so that draft lengths depend on costs and acceptance only."""

from __future__ import annotations

from ferrum.scheduler.sequence import Sequence
from ferrum.speculative.proposer import Draft


class Always:
    """A proposer of the same tokens for every sequence."""

    only_predicted = False

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def propose(self, sequence: Sequence, max_tokens: int) -> Draft | None:
        return Draft(self.tokens[:max_tokens], "always")

    def forget(self, sequence: Sequence) -> None:
        self.tokens = ()
