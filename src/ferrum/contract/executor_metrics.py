"""An executor's counts and speed, over a window of its last steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ferrum.core.json_record import JsonRecord
from ferrum.core.step import Span

WINDOW: Final = 1024
"""Steps in the window of latencies, throughput and utilisation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorMetrics(JsonRecord):
    """An executor's counts since its start, and its speed over the last 1,024 steps.

    An operation is a served span. It is a decode if its sequence existed before and it processes one token besides
    drafts, else a prefill. A step is a prefill step if it has at least one prefill.

    Attributes:
        total_operations: prefill_operations + decode_operations.
        avg_prefill_latency, avg_decode_latency: mean duration of the window's steps of that kind, in ms; 0 without one.
        p95_prefill_latency, p95_decode_latency: their 95th percentile by nearest rank: the value at the rank ceil(0.95
            x n), in ms.
        throughput_tps: tokens processed in the window's steps / sum of their durations in seconds.
        memory_efficiency: stored tokens / tokens that the pages in use can hold; above 1 if pages are shared.
        batch_utilization: mean sequences per step of the window / `max_batch_size`.
    """

    total_operations: int
    prefill_operations: int
    decode_operations: int
    avg_prefill_latency: float
    avg_decode_latency: float
    p95_prefill_latency: float
    p95_decode_latency: float
    throughput_tps: float
    memory_efficiency: float
    batch_utilization: float


class StepTime(NamedTuple):
    """A finished step: its served spans by kind, their tokens, and its duration."""

    prefills: int
    decodes: int
    tokens: int
    seconds: float


def is_decode(span: Span) -> bool:
    """Whether a span is one more token of a known sequence, possibly with drafts."""
    return span.start > 0 and len(span.tokens) == 1 + span.drafts


class StepRecorder:
    """A collector of finished steps. One thread at a time may record; any thread may read the metrics.

    It has no lock, since a forked process would wait forever for a lock that another thread held.
    """

    def __init__(self) -> None:
        self._operations = (0, 0)
        self._window: deque[StepTime] = deque(maxlen=WINDOW)

    def record(self, served: Sequence[Span], seconds: float) -> None:
        """Record a step: its spans with a result, and its duration."""
        decodes = tokens = 0
        for span in served:
            decodes += is_decode(span)
            tokens += len(span.tokens)
        prefills = len(served) - decodes
        if served:
            self._operations = (self._operations[0] + prefills, self._operations[1] + decodes)
            self._window.append(StepTime(prefills, decodes, tokens, seconds))

    def metrics(self, *, max_batch_size: int, memory_efficiency: float) -> ExecutorMetrics:
        """Return the metrics now."""
        steps = self._window.copy()  # atomic, unlike an iteration
        prefills, decodes = self._operations
        prefill_ms = sorted(1e3 * step.seconds for step in steps if step.prefills)
        decode_ms = sorted(1e3 * step.seconds for step in steps if not step.prefills)
        seconds = math.fsum(step.seconds for step in steps)
        return ExecutorMetrics(
            total_operations=prefills + decodes,
            prefill_operations=prefills,
            decode_operations=decodes,
            avg_prefill_latency=_mean(prefill_ms),
            avg_decode_latency=_mean(decode_ms),
            p95_prefill_latency=percentile(prefill_ms, 95),
            p95_decode_latency=percentile(decode_ms, 95),
            throughput_tps=sum(step.tokens for step in steps) / seconds if seconds else 0.0,
            memory_efficiency=memory_efficiency,
            batch_utilization=_mean([step.prefills + step.decodes for step in steps]) / max_batch_size,
        )


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values) if values else 0.0


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the nearest-rank percentile of ascending values, at rank ceil(percent / 100 x n); 0 without any."""
    return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else 0.0
