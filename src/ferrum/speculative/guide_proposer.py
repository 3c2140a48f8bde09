"""Drafts from grammars: the tokens to which a guide leaves no alternative.

They are verified like every draft: a token without its forward pass would need a second path, whose bits could differ.
"""

from __future__ import annotations

from typing import Final

from ferrum.scheduler.sequence import Sequence
from ferrum.speculative.proposer import Draft

GRAMMAR: Final = "grammar"
"""The kind of these drafts."""


class GuideProposer:
    """Proposes what the sequence's guide forces, as far as it is known without waiting."""

    only_predicted = True

    def propose(self, sequence: Sequence, max_tokens: int) -> Draft | None:
        tokens = () if sequence.guide is None else sequence.guide.forced(max_tokens)
        return Draft(tokens, GRAMMAR) if tokens else None

    def forget(self, sequence: Sequence) -> None:
        pass
