"""Whose first tokens come in a step of their own: those of a share that has nothing yet, where that is cheap.

A step of many that decode takes long, and a short prompt in it waits for all of them. Computed without them it is there
much sooner, and they wait little more than they would have: no token depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Series
from typing import Final, TypeAlias

from ferrum.core.step import Span
from ferrum.core.types import Sequence
from ferrum.scheduler.costs import StepCosts, weighed_context
from ferrum.scheduler.plan import OpenStep

Planned: TypeAlias = Series[tuple[Sequence, Span]]

CHEAP: Final = 0.5
"""A step without those who decode is worth it where it takes at most this part of the step with them."""


class FirstTokens:
    """Decides which steps those who decode sit out; never two in a row.

    Args:
        costs: what steps take; while they know of none, nobody sits out.
        share: whose turn a sequence takes.
    """

    def __init__(self, costs: StepCosts, share: Callable[[Sequence], str]) -> None:
        self._costs = costs
        self._share = share
        self._hurried = False

    def hurry(self, step: OpenStep, running: Iterable[Sequence]) -> None:
        """Take those who decode out of a step that brings a share its first tokens, where it is much shorter so.

        Args:
            step: planned, but for guesses.
            running: the sequences that run.
        """
        spans = step.spans()
        first = [(sequence, span) for sequence, span in spans if not sequence.generated]
        self._hurried = (
            0 < len(first) < len(spans)
            and not self._hurried
            and self._is_awaited(first, running)
            and 0 < self._seconds(first) <= CHEAP * self._seconds(spans)
        )
        if self._hurried:
            for sequence in [each for each, _ in spans if each.generated]:
                step.drop(sequence)

    def _is_awaited(self, first: Planned, running: Iterable[Sequence]) -> bool:
        """Whether one of these spans ends a prompt of a share that has no answer yet."""
        served = {self._share(sequence) for sequence in running if sequence.generated}
        return any(span.end == len(each.tokens) and self._share(each) not in served for each, span in first)

    def _seconds(self, spans: Planned) -> float:
        """What a step of these would take."""
        each = [span for _, span in spans]
        return self._costs.predict(sum(len(span.tokens) for span in each), weighed_context(each))
