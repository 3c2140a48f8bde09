"""How much of the prompts joins a step in which others decode: as much as keeps their next tokens in time.

Tokens of a prompt ride along with decoded ones, and everybody waits for the whole step. On a slow machine, or with a
large model, a long piece of a prompt would hold up every answer that is being written. What a step takes is measured
(`StepCosts`), so the piece is as long as fits, whatever machine and model these are. It changes no bit of any answer.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from ferrum.scheduler.costs import StepCosts
from ferrum.scheduler.drafts import Room

PROMPTS_SHARE: Final = 0.5
"""Prompts get at least this share of a step: they go on where decoding alone takes as long as a step may."""

LEAST: Final = 16
"""Tokens of prompts that a step takes at least: fewer are hardly cheaper, and every step has to get somewhere."""


class Pacing:
    """Keeps steps in which sequences decode below a time.

    Args:
        costs: what steps take; while they know of none, everything is let in, and is how they come to know.
        seconds: how long such a step may take; None: as long as it likes.
    """

    def __init__(self, costs: StepCosts, seconds: float | None) -> None:
        self._costs = costs
        self._seconds = seconds

    def prompt_tokens(self, room: Room, stored: int) -> int:
        """How many tokens of prompts a step may take, at most its budget.

        Args:
            room: the step with the tokens of those who decode; none of these: nobody waits, and the budget is free.
            stored: tokens that the prompts which may join have stored, in the longest of them.
        """
        if self._seconds is None or not room.rows:
            return room.budget
        alone = self._costs.predict(room.rows, room.context_tokens)
        limit = max(self._seconds, alone / (1 - PROMPTS_SHARE))
        context = room.context_tokens + stored
        fits = bisect_right(
            range(1, room.budget + 1), limit, key=lambda tokens: self._costs.predict(room.rows + tokens, context)
        )
        return min(room.budget, max(LEAST, fits))
