"""What a step costs: seconds by its tokens and by the tokens that are stored, learned from the steps themselves.

The model is `pace * (base[rows] + slope[rows] * context)`. Each part is a median, so that a step that something else
held up teaches nothing. A step of few rows costs hardly more than one of a single row, until arithmetic takes longer
than reading the weights; where that begins is what this is for. Whoever asks may only choose by it how much to compute
at a time: no token depends on it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Final

from ferrum.core.errors import FerrumError
from ferrum.core.step import Span, StepBatch, StepOutput

WINDOW: Final = 15
"""Steps of a size that its cost is the median of."""

PACE_WINDOW: Final = 7
"""Steps that tell how fast the machine is just now; shared machines change between levels."""

STEADY: Final = 0.99
"""How much of the pace is taken out of a step before its size is learned from it. The rest lets what is believed of the
sizes that run follow the clock: else noise in the pace would add up in them, and none in those that do not run.
"""

APART: Final = 1.25
"""Two steps of one size tell of the price of stored tokens when one has so many times those of the other."""

STRANGE: Final = 2.0
"""The first step of a size is not believed when it took more than so many times what those of other sizes tell of it:
what seems dear is not run again, and so it would be believed for ever. The second one is.
"""

FLOOR: Final = 0.25
"""No step takes less than so much of the fastest one of its size, however steep the slope may look for a while."""

REFRESH: Final = 16
"""Observations between two looks at the slopes, each of which makes all bases be computed anew; and most that wait."""

TOGETHER: Final = 8
"""Rows of a span that take as long to compute with a stored token as it takes to read it."""


def weighed(rows: int, stored: int) -> int:
    """The stored tokens of a span of so many rows, as many times as they cost what one row has to read.

    A long piece of a prompt computes with each of them for every one of its rows. Were they counted once, the price of
    those of one prompt would be believed of those of all who decode beside the next one, where it is a hundredth.
    """
    return max(stored, stored * rows // TOGETHER)


def weighed_context(spans: Iterable[Span]) -> int:
    """The stored tokens of all these, `weighed`."""
    return sum([weighed(len(span.tokens), span.start) for span in spans])


class StepCosts:
    """Seconds of a step, learned online. Not thread-safe: the engine's loop owns it."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._seen: dict[int, deque[tuple[int, float]]] = {}
        self._slope_samples: dict[int, deque[float]] = {}
        self._slopes: dict[int, float] = {}
        self._bases: dict[int, tuple[float, float]] = {}
        self._ratios = deque([1.0] * PACE_WINDOW, PACE_WINDOW)
        self._pace = 1.0
        self._observed = 0
        self._noted: list[tuple[int, int, float]] = []
        self._strange: set[int] = set()

    def observe(self, rows: int, context_tokens: int, seconds: float) -> None:
        """Learn from a step, by the time that somebody asks: most steps are planned without a prediction.

        Args:
            rows: its tokens, over all its sequences; at least 1.
            context_tokens: tokens that these had stored before it, `weighed` and added up.
            seconds: how long it took.
        """
        self._noted.append((rows, context_tokens, seconds))
        if len(self._noted) == REFRESH:
            self._learn()

    def _learn(self) -> None:
        """Take in the steps that were noted. What they are compared with is as it was before them."""
        for each in self._noted:
            self._take_in(*each)
        for rows, _, _ in self._noted:
            self._bases.pop(_size(rows), None)
        self._noted.clear()

    def _take_in(self, rows: int, context_tokens: int, seconds: float) -> None:
        size = _size(rows)
        if size not in self._seen:
            if size not in self._strange and seconds > STRANGE * self._predict(rows, context_tokens) > 0:
                self._strange.add(size)
                return
            insort(self._sizes, size)
            self._seen[size] = deque(maxlen=WINDOW)
        seen = self._seen[size]
        # A size that is hardly known would blame the machine's pace for its own ignorance.
        if len(seen) > WINDOW // 2 and (expected := self._at(size, context_tokens)) > 0:
            self._ratios.append(seconds / expected)
            self._pace = median(self._ratios)
        normal = seconds / self._pace**STEADY
        self._sample_slope(size, context_tokens, normal)
        seen.append((context_tokens, normal))
        self._observed += 1
        if self._observed % REFRESH == 0:
            self._slopes = {octave: max(0.0, median(samples)) for octave, samples in self._slope_samples.items()}
            self._bases.clear()

    def observe_step(self, batch: StepBatch, output: StepOutput) -> None:
        """Learn from a step as its executor timed it; nothing from one that failed in part: parts are tried twice."""
        if output.seconds > 0 and not any(isinstance(outcome, FerrumError) for outcome in output.results):
            self.observe(batch.total_tokens, weighed_context(batch.spans), output.seconds)

    @property
    def largest(self) -> int:
        """Tokens of about the largest step that was observed; 0 before the first."""
        self._learn()
        return self._sizes[-1] if self._sizes else 0

    @property
    def smallest(self) -> int:
        """Tokens of about the smallest step that was observed; 0 before the first."""
        self._learn()
        return self._sizes[0] if self._sizes else 0

    def predict(self, rows: int, context_tokens: int) -> float:
        """Seconds that a step would take; arguments as for `observe`. 0 while nothing has been observed.

        Between observed sizes it is interpolated, beyond the largest it goes on as from the smallest to the largest,
        but never down, and fewer rows than the smallest cost as much as that one. It is never 0 again.
        """
        self._learn()
        return self._predict(rows, context_tokens)

    def _predict(self, rows: int, context_tokens: int) -> float:
        """The same by what has been taken in."""
        if not self._sizes:
            return 0.0
        sizes = self._sizes
        right = bisect_left(sizes, rows)
        if right < len(sizes) and (sizes[right] == rows or right == 0):
            return self._pace * self._at(sizes[right], context_tokens)
        low, high = (sizes[right - 1], sizes[right]) if right < len(sizes) else (sizes[0], sizes[-1])
        below, above = self._at(low, context_tokens), self._at(high, context_tokens)
        if low == high or (rows > high and above < below):
            return self._pace * above
        return self._pace * (below + (above - below) * (rows - low) / (high - low))

    def _at(self, size: int, context_tokens: int) -> float:
        """Seconds at the usual pace of a step of an observed size."""
        slope = self._slope(size)
        if size not in self._bases:
            seen = self._seen[size]
            base = median(seconds - slope * context for context, seconds in seen)
            self._bases[size] = base, FLOOR * min(seconds for _, seconds in seen)
        base, least = self._bases[size]
        return max(least, base + slope * context_tokens)

    def _slope(self, size: int) -> float:
        """Seconds per stored token in steps of about this size, or of the size nearest to it that has told."""
        if not self._slopes:
            return 0.0
        octave = size.bit_length()
        if octave in self._slopes:
            return self._slopes[octave]
        return self._slopes[min(self._slopes, key=lambda other: (abs(other - octave), other))]

    def _sample_slope(self, size: int, context_tokens: int, seconds: float) -> None:
        """Compare a step with the oldest one of its size that counts: a slope for the median (Theil 1950, Sen 1968)."""
        if not self._seen[size]:
            return
        context, took = self._seen[size][0]
        few, many = sorted((context, context_tokens))
        if many > APART * few:
            samples = self._slope_samples.setdefault(size.bit_length(), deque(maxlen=2 * WINDOW))
            samples.append((seconds - took) / (context_tokens - context))


def _size(rows: int) -> int:
    """The number of rows by which a step is known: exact below 32, then to four binary digits behind the first."""
    rest = max(0, rows.bit_length() - 5)
    return rows >> rest << rest
