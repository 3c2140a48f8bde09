"""A step while it is planned, and the plan that the engine runs."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.step import Span, StepBatch
from ferrum.core.types import Sequence
from ferrum.scheduler.drafts import StepLoad
from ferrum.scheduler.step_cost_model import total_context_cost


@dataclass(frozen=True, slots=True)
class Plan:
    """A step to run: its spans and their sequences, in the same order."""

    batch: StepBatch
    sequences: tuple[Sequence, ...]


class OpenStep:
    """A step while it is planned.

    Attributes:
        budget: tokens that may still be added.
        max_sequences: largest number of sequences that may run after it.
        admits: whether waiting requests may still join.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._held = 0
        self.max_sequences = 0
        self.admits = True
        self._spans: dict[str, tuple[Sequence, Span]] = {}

    def add(self, sequence: Sequence, span: Span) -> None:
        """Plan a span; it replaces the sequence's earlier one."""
        self.drop(sequence)
        self._spans[sequence.cache_id] = (sequence, span)
        self.budget -= len(span.tokens)

    def drop(self, sequence: Sequence) -> None:
        """Remove the sequence's span, if any."""
        planned = self._spans.pop(sequence.cache_id, None)
        if planned is not None:
            self.budget += len(planned[1].tokens)

    def hold(self, limit: int | None) -> None:
        """Limit the remaining budget to `limit` tokens until the next call; None lifts the limit."""
        self.budget += self._held
        self._held = 0 if limit is None else max(0, self.budget - limit)
        self.budget -= self._held

    def spans(self) -> tuple[tuple[Sequence, Span], ...]:
        """Return the planned spans with their sequences."""
        return tuple(self._spans.values())

    @property
    def room(self) -> StepLoad:
        """The step as those see it who add tokens to it."""
        spans = [span for _, span in self._spans.values()]
        return StepLoad(sum(len(span.tokens) for span in spans), total_context_cost(spans), self.budget)

    def close(self) -> Plan | None:
        """Return the plan, or None if it has no span."""
        if not self._spans:
            return None
        sequences, spans = zip(*self._spans.values(), strict=True)
        return Plan(StepBatch(spans), sequences)
