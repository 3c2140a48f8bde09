"""A step while it is planned, its limits, and the prediction of its duration.

Limits keep inter-token latency near a target: prompt tokens, sequences, and who sits a step out. Durations are learned
from the steps that run. No token of an answer depends on any of this.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Series
from dataclasses import dataclass
from typing import TypeAlias

from ferrum.cache.page_table import PageTable
from ferrum.core.policy_config import POLICY, PolicyConfig
from ferrum.core.step import Span, SpanResult, StepBatch, StepOutput, is_plain
from ferrum.scheduler.drafts import StepLoad
from ferrum.scheduler.sequence import Sequence, make_span, stays_unconstrained


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
        rest = max(0, rows.bit_length() - 5)
        size = rows >> rest << rest  # its class: exact below 32, then rounded down to five binary digits
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

    def observe_step(self, batch: StepBatch, output: StepOutput, context_tokens: int | None = None) -> None:
        """Learn from an executed step; ignore one that failed in part, since its parts ran twice.

        Args:
            batch, output: the step.
            context_tokens: sum of the `context_cost` of its spans, if it is known.
        """
        if output.seconds > 0 and set(map(type, output.results)) == {SpanResult}:
            context_tokens = total_context_cost(batch.spans) if context_tokens is None else context_tokens
            self.observe(batch.total_tokens, context_tokens, output.seconds)

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


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step to run: its spans and their sequences, in the same order.

    Attributes:
        context_tokens: sum of the `context_cost` of the spans, if the step decodes all running sequences; else None.
        tenant: the tenant queue of all sequences of such a step.
    """

    batch: StepBatch
    sequences: tuple[Sequence, ...]
    context_tokens: int | None = None
    tenant: str | None = None


class DecodeSteps:
    """The fast path of planning: while nothing else is to do, the next step is the last one advanced by a token.

    The scheduler begins them when a step decodes all that is running, and ends them when anything but a token happens
    to a sequence.

    Args:
        pages: the page table.

    Attributes:
        sequences: those that decode; empty if the next step must be planned in full.
    """

    def __init__(self, pages: PageTable) -> None:
        self._pages = pages
        self.sequences: tuple[Sequence, ...] = ()
        self._cache_ids: list[str] = []
        self._tenant = ""

    def begin(self, sequences: tuple[Sequence, ...], tenants: Collection[str]) -> None:
        """Go on from a step that decodes these sequences, unless they belong to several tenant queues.

        Args:
            sequences: all running sequences, in the order of the step.
            tenants: their tenant queues.
        """
        self.sequences = sequences if len(tenants) == 1 else ()
        self._tenant = next(iter(tenants))
        self._cache_ids = [sequence.cache_id for sequence in sequences]

    def end(self) -> None:
        """Plan the next step in full."""
        self.sequences = ()

    def plan(self) -> StepPlan | None:
        """Return the next step; None if a sequence is about to end or has more to ask, or if pages run out."""
        spans, starts = [], []
        for sequence in self.sequences:
            known = len(sequence.tokens) + sequence.pending
            if known >= sequence.limit or not (sequence.guide is None or stays_unconstrained(sequence, ())):
                return None
            # A sequence that has generated a token has all log-probabilities of its prompt.
            spans.append(make_span(sequence, 1, scored=len(sequence.request.prompt)))
            starts.append(known - 1)
        if not is_plain(spans) or not self._pages.next_tokens.reserve(self._cache_ids, starts):
            return None
        return StepPlan(StepBatch(tuple(spans)), self.sequences, sum(starts), self._tenant)


class OpenStep:
    """A step while it is planned.

    Attributes:
        budget: tokens that may still be added.
        max_sequences: largest number of sequences that may run after it.
        admits: whether waiting requests may still join.
        spans: the planned spans with their sequences, by cache id.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._held = 0
        self.max_sequences = 0
        self.admits = True
        self.spans: dict[str, tuple[Sequence, Span]] = {}

    def add(self, sequence: Sequence, span: Span) -> None:
        """Plan a span; it replaces the sequence's earlier one."""
        self.drop(sequence)
        self.spans[sequence.cache_id] = (sequence, span)
        self.budget -= len(span.tokens)

    def drop(self, sequence: Sequence) -> None:
        """Remove the sequence's span, if any."""
        planned = self.spans.pop(sequence.cache_id, None)
        if planned is not None:
            self.budget += len(planned[1].tokens)

    def hold(self, limit: int | None) -> None:
        """Limit the remaining budget to `limit` tokens until the next call; None lifts the limit."""
        self.budget += self._held
        self._held = 0 if limit is None else max(0, self.budget - limit)
        self.budget -= self._held

    @property
    def whole_budget(self) -> int:
        """Tokens that may still be added without the limit of `hold`: what is not cut may pass it."""
        return self.budget + self._held

    @property
    def room(self) -> StepLoad:
        """The step as those see it who add tokens to it."""
        spans = [span for _, span in self.spans.values()]
        return StepLoad(sum(len(span.tokens) for span in spans), total_context_cost(spans), self.budget)

    def close(self) -> StepPlan | None:
        """Return the plan, or None if it has no span."""
        if not self.spans:
            return None
        sequences, spans = zip(*self.spans.values(), strict=True)
        return StepPlan(StepBatch(spans), sequences)


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
        config: constants.
    """

    def __init__(self, costs: StepCosts, config: PolicyConfig = POLICY) -> None:
        self._costs = costs
        self._config = config
        self._last = False

    def apply(self, step: OpenStep, running: Iterable[Sequence]) -> None:
        """Drop the sequences that decode from the step if the rest is urgent and short.

        Args:
            step: the planned step, without drafts.
            running: all running sequences.
        """
        spans = tuple(step.spans.values())
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
        served = {sequence.tenant for sequence in running if sequence.generated}
        return any(span.end == len(each.tokens) and each.tenant not in served for each, span in first)

    def _seconds(self, planned: Planned) -> float:
        spans = [span for _, span in planned]
        return self._costs.predict(sum(len(span.tokens) for span in spans), total_context_cost(spans))


def fastest_batch_size(seconds: Callable[[int], float], limit: int) -> int:
    """Return the batch size beyond which doubling gains less than `POLICY.batch_gain`.

    A decode step reads all weights once whatever its batch size, so throughput grows until arithmetic is the limit.

    Args:
        seconds: duration of a decode step with this many sequences; infinite if they do not fit.
        limit: largest size that can run, at least 1.
    """
    best, rate = 1, 1 / max(seconds(1), 1e-9)
    while 2 * best <= limit:
        larger = 2 * best / max(seconds(2 * best), 1e-9)
        if larger <= POLICY.batch_gain * rate:
            break
        best, rate = 2 * best, larger
    return best
