"""Fixed step costs, so that drafts depend on tokens alone and not on the clock."""

from __future__ import annotations

from ferrum.scheduler.step_plan import StepCosts


class SetCosts(StepCosts):
    """Step costs by a formula.

    Args:
        step: seconds of every step.
        row: seconds of each of its tokens.
    """

    largest = 1 << 20

    def __init__(self, step: float = 1.0, row: float = 0.0) -> None:
        super().__init__()
        self._step, self._row = step, row

    @property
    def smallest(self) -> int:
        return 1 if self._step or self._row else 0

    def observe(self, rows: int, context_tokens: int, seconds: float) -> None:
        """Learn nothing."""

    def predict(self, rows: int, context_tokens: int) -> float:
        return self._step + self._row * rows
