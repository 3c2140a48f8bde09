"""A step while it is planned, and the plan that the engine runs."""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.core.step import Span, StepBatch
from ferrum.core.types import Sequence
from ferrum.scheduler.drafts import Room
from ferrum.scheduler.step_cost_model import weighed_context


@dataclass(frozen=True, slots=True)
class Plan:
    """A step to run: its spans and, in the same order, whose they are."""

    batch: StepBatch
    sequences: tuple[Sequence, ...]


class OpenStep:
    """A step while it is planned.

    Attributes:
        budget: tokens left to give away.
        places: most sequences that run after it.
        admits: whether newcomers still join.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._held = 0
        self.places = 0
        self.admits = True
        self._spans: dict[str, tuple[Sequence, Span]] = {}

    def add(self, sequence: Sequence, span: Span) -> None:
        """Plan a span, in place of the one that the sequence may have."""
        self.drop(sequence)
        self._spans[sequence.cache_id] = (sequence, span)
        self.budget -= len(span.tokens)

    def drop(self, sequence: Sequence) -> None:
        """Take back the sequence's span, where it has one."""
        planned = self._spans.pop(sequence.cache_id, None)
        if planned is not None:
            self.budget += len(planned[1].tokens)

    def hold(self, most: int | None) -> None:
        """Give away at most so many of the tokens that are left, until told otherwise; None: all again."""
        self.budget += self._held
        self._held = 0 if most is None else max(0, self.budget - most)
        self.budget -= self._held

    def spans(self) -> tuple[tuple[Sequence, Span], ...]:
        """What is planned so far."""
        return tuple(self._spans.values())

    @property
    def room(self) -> Room:
        """What it is so far, to those who would add to it."""
        spans = [span for _, span in self._spans.values()]
        return Room(sum(len(span.tokens) for span in spans), weighed_context(spans), self.budget)

    def close(self) -> Plan | None:
        """The plan, or None when it has no span."""
        if not self._spans:
            return None
        sequences, spans = zip(*self._spans.values(), strict=True)
        return Plan(StepBatch(spans), sequences)
