"""How long outputs become: what is known of their ends before they come.

A choice that no token can stop ends at its limit. Others are thought to become as long as those before them that got as
far; one of these that ran into its limit tells nothing of where it would have ended by itself, and counts as endless.
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
        limit = context - len(sequence.tokens)
        if max_tokens is not None:
            limit = min(limit, max_tokens - sequence.generated)
            if not sequence.request.stop_token_ids:
                return limit
        longer = [length for length in self._ended if length > sequence.generated]
        if longer:
            limit = int(min(limit, median_high(longer) - sequence.generated))
        else:
            limit = min(limit, len(sequence.tokens))  # nobody is known to have got so far: as long again as by now
        return limit
