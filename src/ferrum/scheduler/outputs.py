"""How long outputs become: what is known of their ends before they come.

A choice that ran into its limit tells nothing of where it would have ended by itself. So it counts as endless, and the
limits that requests bring are believed until more than half of those that got as far have ended before them.
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median_high
from typing import Final

from ferrum.core.types import FinishReason, Sequence

WINDOW: Final = 64
"""Ended choices that are remembered."""


class OutputLengths:
    """Learns from choices that have ended how many tokens others will generate.

    The history as a forecast, and only the part of it that has got as far as the choice in question, are those of Gong
    et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees" (ASPLOS 2025).
    """

    def __init__(self) -> None:
        self._ended: deque[float] = deque(maxlen=WINDOW)

    def learn(self, sequence: Sequence) -> None:
        """Take in a choice that has ended; one that failed or never began tells nothing."""
        if sequence.generated and sequence.finish is not FinishReason.ERROR:
            self._ended.append(inf if sequence.finish is FinishReason.LENGTH else sequence.generated)

    def to_come(self, sequence: Sequence, context: int) -> int:
        """How many tokens the choice is still to generate, as far as one can tell.

        Args:
            context: most tokens of prompt and output together.
        """
        max_tokens = sequence.request.params.max_tokens
        limit: float = context - len(sequence.tokens)
        if max_tokens is not None:
            limit = min(limit, max_tokens - sequence.generated)
        longer = [length for length in self._ended if length > sequence.generated]
        if longer:
            limit = min(limit, median_high(longer) - sequence.generated)
        elif self._ended or max_tokens is None:
            # Nobody has got so far, or nobody is known: as long again as it is by now.
            limit = min(limit, len(sequence.tokens))
        return max(0, int(limit))
