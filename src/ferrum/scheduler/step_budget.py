"""Limits of a step that keep inter-token latency near a target: prompt tokens, sequences, and who sits a step out.

What a step takes is predicted by `step_cost_model.py`. No token of an answer depends on these limits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Series
from typing import TypeAlias

from ferrum.core.policy_config import POLICY, PolicyConfig
from ferrum.core.step import Span
from ferrum.core.tuning import fastest_batch_size
from ferrum.core.types import Sequence
from ferrum.scheduler.drafts import StepLoad
from ferrum.scheduler.step_cost_model import StepCosts, context_cost, total_context_cost
from ferrum.scheduler.step_plan import OpenStep

Planned: TypeAlias = Series[tuple[Sequence, Span]]


class StepBudget:
    """Bounds on steps in which sequences decode (`--decode-seconds`).

    Args:
        costs: predicted durations of steps; nothing is bounded before the first observation.
        seconds: target duration of a step that decodes; None: no bound.
        config: constants.
    """

    def __init__(self, costs: StepCosts, seconds: float | None, config: PolicyConfig = POLICY) -> None:
        self._costs = costs
        self._seconds = seconds
        self._config = config

    def bound(self, step: OpenStep, running: Iterable[Sequence], behind: Iterable[Sequence], limit: int) -> None:
        """Set the prompt tokens and the sequences that a step takes at most.

        Args:
            step: the step, with the tokens of the sequences that decode.
            running: all running sequences; none of them has to leave.
            behind: those of them whose prompts are not computed yet.
            limit: largest number of sequences in any case.
        """
        step.hold(self.prompt_tokens(step.room, max((each.computed for each in behind), default=0)))
        lengths = [each.computed for each in running]
        stored = sum(lengths) / max(1, len(lengths))
        step.max_sequences = min(limit, max(len(lengths), self.sequences(limit, stored)))

    def sequences(self, limit: int, stored: float) -> int:
        """Return how many sequences may decode together.

        The number keeps to the target, unless a larger batch brings more tokens per second.

        Args:
            limit: largest number.
            stored: mean number of stored tokens of a sequence.
        """
        if self._seconds is None or not self._costs.predict(1, 0):
            return limit

        def seconds(size: int) -> float:
            return self._costs.predict(size, round(size * stored))

        in_time = bisect_right(range(1, limit + 1), self._seconds, key=seconds)
        return max(in_time, fastest_batch_size(seconds, limit))

    def prompt_tokens(self, room: StepLoad, stored: int) -> int:
        """Return how many prompt tokens a step may take, at most its budget.

        Args:
            room: the step with the tokens of the sequences that decode. Without any, the budget is free.
            stored: stored tokens of the longest prompt that may join.
        """
        least = min(room.budget, self._config.min_prompt_tokens)
        if self._seconds is None or not room.rows or not self._costs.smallest:
            return room.budget
        if room.rows + least < self._costs.smallest:
            return least  # every observed step was larger: measure a small one first
        alone = self._costs.predict(room.rows, room.context_tokens)
        limit = max(self._seconds, alone / (1 - self._config.prompt_share))

        def seconds(tokens: int) -> float:
            return self._costs.predict(room.rows + tokens, room.context_tokens + context_cost(tokens, stored))

        return max(least, bisect_right(range(1, room.budget + 1), limit, key=seconds))


class FirstTokenSteps:
    """Steps without the sequences that decode, where that brings a tenant its first token much sooner.

    Never two in a row. It applies to tenants of which no running sequence has generated a token.

    Args:
        costs: predicted durations of steps; before the first observation no sequence sits out.
        tenant: the tenant queue of a sequence.
        config: constants.
    """

    def __init__(self, costs: StepCosts, tenant: Callable[[Sequence], str], config: PolicyConfig = POLICY) -> None:
        self._costs = costs
        self._tenant = tenant
        self._config = config
        self._last = False

    def apply(self, step: OpenStep, running: Iterable[Sequence]) -> None:
        """Drop the sequences that decode from the step if the rest is urgent and short.

        Args:
            step: the planned step, without drafts.
            running: all running sequences.
        """
        spans = step.spans()
        first = [(sequence, span) for sequence, span in spans if not sequence.generated]
        self._last = (
            0 < len(first) < len(spans)
            and not self._last
            and self._is_urgent(first, running)
            and 0 < self._seconds(first) <= self._config.first_token_ratio * self._seconds(spans)
        )
        if self._last:
            for sequence in [each for each, _ in spans if each.generated]:
                step.drop(sequence)

    def _is_urgent(self, first: Planned, running: Iterable[Sequence]) -> bool:
        """Return whether one of the spans completes the prompt of a tenant without any output."""
        served = {self._tenant(sequence) for sequence in running if sequence.generated}
        return any(span.end == len(each.tokens) and self._tenant(each) not in served for each, span in first)

    def _seconds(self, planned: Planned) -> float:
        spans = [span for _, span in planned]
        return self._costs.predict(sum(len(span.tokens) for span in spans), total_context_cost(spans))
