"""How much of the prompts joins a step in which others decode, and how many decode: as keeps their tokens in time.

Tokens of a prompt ride along with decoded ones, and everybody waits for the whole step. On a slow machine, or with a
large model, a long piece of a prompt would hold up every answer that is being written. What a step takes is measured
(`StepCosts`), so the piece is as long as fits, whatever machine and model these are. Where reading the weights is no
longer what takes the time, more sequences in a step make it longer and bring nothing: then newcomers wait. It changes
no bit of any answer.

Whose first tokens come in a step of their own: those of a share that has nothing yet, where that is cheap.

A step of many that decode takes long, and a short prompt in it waits for all of them. Computed without them it is there
much sooner, and they wait little more than they would have: no token depends on it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Series
from typing import Final, TypeAlias

from ferrum.core.step import Span
from ferrum.core.tuning import fastest_batch_size
from ferrum.core.types import Sequence
from ferrum.scheduler.drafts import Room
from ferrum.scheduler.step_cost_model import StepCosts, weighed, weighed_context
from ferrum.scheduler.step_plan import OpenStep

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

    def bound(self, step: OpenStep, running: Iterable[Sequence], behind: Iterable[Sequence], most: int) -> None:
        """Say how many prompt tokens and how many sequences a step takes that has the tokens of those who decode.

        Args:
            step: is told.
            running: the sequences that run; none of them has to leave.
            behind: those of them whose prompts go on.
            most: sequences there may be at most.
        """
        step.hold(self.prompt_tokens(step.room, max((each.computed for each in behind), default=0)))
        lengths = [each.computed for each in running]
        stored = sum(lengths) / max(1, len(lengths))
        step.places = min(most, max(len(lengths), self.sequences(most, stored)))

    def sequences(self, most: int, stored: float) -> int:
        """How many sequences may decode side by side: as keep to the time, or as bring more tokens per second.

        Args:
            most: at most.
            stored: tokens that each of them has stored.
        """
        if self._seconds is None or not self._costs.predict(1, 0):
            return most

        def seconds(size: int) -> float:
            return self._costs.predict(size, round(size * stored))

        return max(bisect_right(range(1, most + 1), self._seconds, key=seconds), fastest_batch_size(seconds, most))

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
        if limit > self._seconds and room.rows + LEAST < (smallest := self._costs.smallest):
            # What they take alone is not known, but for that it is no more: a smaller step tells more of it.
            return min(room.budget, max(LEAST, smallest // 2 - room.rows))

        def seconds(tokens: int) -> float:
            return self._costs.predict(room.rows + tokens, room.context_tokens + weighed(tokens, stored))

        fits = bisect_right(range(1, room.budget + 1), limit, key=seconds)
        return min(room.budget, max(LEAST, fits))


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
