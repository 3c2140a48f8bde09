"""What a server made of a load, as one JSON document. docs/bench.md defines every figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np

from ferrum.bench.report import Document
from ferrum.bench.serve_client import Timeline
from ferrum.bench.serve_options import Level, Load, Target
from ferrum.core.json_record import JsonRecord

VERSION: Final = 1
"""Of the document's layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(JsonRecord):
    """How a time in seconds is distributed: its mean, percentiles, and the longest."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self | None:
        """Of those values that are there; None where none is. Percentiles between two values are interpolated."""
        known = np.array([value for value in values if value is not None], np.float64)
        if not len(known):
            return None
        p50, p90, p99 = (float(each) for each in np.percentile(known, (50, 90, 99)))
        return cls(mean=float(known.mean()), p50=p50, p90=p90, p99=p99, max=float(known.max()))


def well_served(timeline: Timeline, level: Level) -> bool:
    """Whether a request did not fail, and kept to the level."""
    if timeline.error is not None:
        return False
    limits = ((timeline.ttft, level.ttft), (timeline.tpot, level.tpot), (timeline.e2e, level.e2e))
    return all(took is None or longest is None or took <= longest for took, longest in limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(JsonRecord):
    """The measured requests in a few figures.

    Attributes:
        requests: how many were measured.
        failures: how many failed, by their error.
        seconds: from when the first was due to the end of the last.
        requests_per_second, tokens_per_second, prompt_tokens_per_second: of those that did not fail.
        goodput: requests per second that were well served (Zhong et al., "DistServe", OSDI 2024).
        good: their part of all.
        ttft, itl, tpot, e2e: see `Timeline`; itl is over all gaps of all requests.
        lateness: the longest that the client itself came late.
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
        """Of at least one request."""
        served = [each for each in timelines if each.error is None]
        seconds = max(each.end for each in timelines) - min(each.planned for each in timelines)
        well = sum(well_served(each, level) for each in timelines)
        return cls(
            requests=len(timelines),
            failures=dict(Counter(each.error for each in timelines if each.error is not None)),
            seconds=seconds,
            requests_per_second=len(served) / seconds,
            tokens_per_second=sum(each.tokens for each in served) / seconds,
            prompt_tokens_per_second=sum(each.prompt_tokens for each in served) / seconds,
            goodput=well / seconds,
            good=well / len(timelines),
            ttft=Spread.of(each.ttft for each in served),
            itl=Spread.of(gap for each in served for gap in each.gaps),
            tpot=Spread.of(each.tpot for each in served),
            e2e=Spread.of(each.e2e for each in served),
            lateness=max(each.sent - each.planned for each in timelines),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOrigin(JsonRecord):
    """When and where it was measured: the client's version and processor, and what the server calls its numerics."""

    ferrum: str
    started: str
    processor: str
    system_fingerprint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeReport(Document):
    """A run.

    Attributes:
        target, load, level: what was asked of whom, and what counts as well served.
        server: its URL; or the model and the options that it was started with.
        summary: the measured requests in figures.
        timelines: every request, those of the warm-up first.
    """

    LAYOUT: ClassVar[int] = VERSION

    target: Target
    load: Load
    level: Level
    origin: ServeOrigin
    server: tuple[str, ...]
    summary: Summary
    timelines: tuple[Timeline, ...]
