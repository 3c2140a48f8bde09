"""The report of `ferrum bench serve` as a JSON document. docs/bench.md defines every figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from ferrum.bench.report import Document
from ferrum.bench.serve_client import Timeline
from ferrum.bench.serve_options import Level, Load, Target
from ferrum.core.json_record import JsonRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(JsonRecord):
    """The distribution of a time in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self | None:
        """Summarise the values that are not None, with interpolated percentiles; None if there are none."""
        known = np.array([value for value in values if value is not None], np.float64)
        if not len(known):
            return None
        p50, p90, p99 = (float(each) for each in np.percentile(known, (50, 90, 99)))
        return cls(mean=float(known.mean()), p50=p50, p90=p90, p99=p99, max=float(known.max()))


def is_good(timeline: Timeline, level: Level) -> bool:
    """Return whether a request succeeded within the service level."""
    if timeline.error is not None:
        return False
    limits = ((timeline.ttft, level.ttft), (timeline.tpot, level.tpot), (timeline.e2e, level.e2e))
    return all(took is None or longest is None or took <= longest for took, longest in limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(JsonRecord):
    """Figures of the measured requests.

    Attributes:
        requests: their number.
        failures: number of failed requests by error.
        seconds: from when the first was due to the end of the last.
        requests_per_second, tokens_per_second, prompt_tokens_per_second: of those that succeeded.
        goodput: good requests per second (Zhong et al., "DistServe", OSDI 2024).
        good: share of good requests.
        ttft, itl, tpot, e2e: see `Timeline`; itl is over all gaps of all requests.
        lateness: the client's longest delay in sending a request.
    """

    requests: int
    failures: Mapping[str, int]
    seconds: float
    requests_per_second: float
    tokens_per_second: float
    prompt_tokens_per_second: float
    goodput: float
    good: float
    ttft: Spread | None
    itl: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    lateness: float

    @classmethod
    def of(cls, timelines: Sequence[Timeline], level: Level) -> Self:
        """Summarise at least one request."""
        served = [each for each in timelines if each.error is None]
        seconds = max(each.end for each in timelines) - min(each.planned for each in timelines)
        good = sum(is_good(each, level) for each in timelines)
        return cls(
            requests=len(timelines),
            failures=dict(Counter(each.error for each in timelines if each.error is not None)),
            seconds=seconds,
            requests_per_second=len(served) / seconds,
            tokens_per_second=sum(each.tokens for each in served) / seconds,
            prompt_tokens_per_second=sum(each.prompt_tokens for each in served) / seconds,
            goodput=good / seconds,
            good=good / len(timelines),
            ttft=Spread.of(each.ttft for each in served),
            itl=Spread.of(gap for each in served for gap in each.gaps),
            tpot=Spread.of(each.tpot for each in served),
            e2e=Spread.of(each.e2e for each in served),
            lateness=max(each.sent - each.planned for each in timelines),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeReport(Document):
    """Results of one run of `ferrum bench serve`.

    Attributes:
        target, load, level: its options.
        ferrum, started, processor: the client's version, the time (UTC, ISO 8601) and the client's CPU.
        system_fingerprint: the server's name for its numerics, if any.
        summary: figures of the measured requests.
        timelines: every request, warm-up first.
    """

    LAYOUT: ClassVar[int] = 2

    target: Target
    load: Load
    level: Level
    ferrum: str
    started: str
    processor: str
    system_fingerprint: str | None
    summary: Summary
    timelines: tuple[Timeline, ...]
