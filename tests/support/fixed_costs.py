"""Costs of steps that no clock has a part in: what is guessed and verified depends on the tokens alone."""

from __future__ import annotations

from ferrum.scheduler.step_cost_model import StepCosts


class SetCosts(StepCosts):
    """A price list.

    Args:
        step: seconds of every step.
        row: seconds of each of its tokens.
    """

    largest = 1 << 20

    def __init__(self, step: float = 1.0, row: float = 0.0) -> None:
        super().__init__()
        self._step, self._row = step, row

    def observe(self, rows: int, context_tokens: int, seconds: float) -> None:
        """See `StepCosts`; nothing is learned."""

    def predict(self, rows: int, context_tokens: int) -> float:
        """See `StepCosts`."""
        return self._step + self._row * rows
