"""Prediction of a step's duration from its tokens and its stored tokens, learned from the steps that run.

The result only decides how much to compute at a time; no token depends on it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from ferrum.core.errors import FerrumError
from ferrum.core.policy_config import POLICY, PolicyConfig
from ferrum.core.step import Span, StepBatch, StepOutput


def context_cost(rows: int, stored: int) -> int:
    """Return what a span's stored tokens cost, in tokens that a single row reads.

    A long prompt chunk computes with each stored token for every row, which takes longer than reading it once.
    """
    return max(stored, stored * rows // POLICY.rows_per_read)


def total_context_cost(spans: Iterable[Span]) -> int:
    """Return the sum of `context_cost` over the spans."""
    return sum([context_cost(len(span.tokens), span.start) for span in spans])


class StepCosts:
    """Moving averages of step durations by size, with one price for stored tokens. Not thread-safe.

    A size's average moves along the line `seconds = mean + slope * (context - mean context)`; the slope is the
    regression over all sizes. Between sizes the prediction is interpolated, since a step of a few rows costs hardly
    more than one of a single row until arithmetic takes longer than reading the weights.
    """

    def __init__(self, config: PolicyConfig = POLICY) -> None:
        self._config = config
        self._sizes: list[int] = []
        self._means: dict[int, tuple[float, float]] = {}
        self._variance = self._covariance = 0.0

    def observe(self, rows: int, context_tokens: int, seconds: float) -> None:
        """Learn from a step.

        Args:
            rows: its tokens, over all sequences; at least 1.
            context_tokens: sum of the `context_cost` of its spans.
            seconds: its duration.
        """
        size = _size(rows)
        # A step that another process delayed must not count in full.
        expected = self.predict(rows, context_tokens)
        seconds = min(seconds, self._config.cost_outlier * expected) if expected else seconds
        if size not in self._means:
            insort(self._sizes, size)
            self._means[size] = (float(context_tokens), seconds)
            return
        mean_context, mean_seconds = self._means[size]
        more_context, more_seconds = context_tokens - mean_context, seconds - mean_seconds
        memory, rate = self._config.cost_slope_memory, self._config.cost_rate
        self._variance = memory * self._variance + more_context * more_context
        self._covariance = memory * self._covariance + more_context * more_seconds
        self._means[size] = (mean_context + rate * more_context, mean_seconds + rate * more_seconds)

    def observe_step(self, batch: StepBatch, output: StepOutput) -> None:
        """Learn from an executed step; ignore one that failed in part, since its parts ran twice."""
        if output.seconds > 0 and not any(isinstance(outcome, FerrumError) for outcome in output.results):
            self.observe(batch.total_tokens, total_context_cost(batch.spans), output.seconds)

    @property
    def largest(self) -> int:
        """Tokens of about the largest observed step; 0 before the first."""
        return self._sizes[-1] if self._sizes else 0

    @property
    def smallest(self) -> int:
        """Tokens of about the smallest observed step; 0 before the first."""
        return self._sizes[0] if self._sizes else 0

    def predict(self, rows: int, context_tokens: int) -> float:
        """Return the expected duration of a step, in seconds; 0 while nothing has been observed.

        Beyond the largest observed size the line from the smallest to the largest goes on, but never down. Below the
        smallest size the prediction is that of the smallest.
        """
        sizes = self._sizes
        if not sizes:
            return 0.0
        right = bisect_left(sizes, rows)
        if right == 0 or len(sizes) == 1:
            return self._at(sizes[0], context_tokens)
        low, high = (sizes[right - 1], sizes[right]) if right < len(sizes) else (sizes[0], sizes[-1])
        below, above = self._at(low, context_tokens), self._at(high, context_tokens)
        if rows > high and above < below:
            return above
        return below + (above - below) * (rows - low) / (high - low)

    def _at(self, size: int, context_tokens: int) -> float:
        """Return the expected duration for an observed size."""
        mean_context, mean_seconds = self._means[size]
        slope = max(0.0, self._covariance / self._variance) if self._variance else 0.0
        return max(self._config.cost_floor * mean_seconds, mean_seconds + slope * (context_tokens - mean_context))


def _size(rows: int) -> int:
    """Return the class of a step size: exact below 32, then rounded down to five binary digits."""
    rest = max(0, rows.bit_length() - 5)
    return rows >> rest << rest
