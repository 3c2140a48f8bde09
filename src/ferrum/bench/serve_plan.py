"""Arrival times and sizes of the requests `ferrum bench serve` sends, drawn before it starts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ferrum.bench.serve_options import Arrivals, Load
from ferrum.core.errors import ConfigError, RequestError
from ferrum.core.json_record import JsonRecord
from ferrum.core.option_fields import about, check_options

REQUESTS: Final = 64
"""Default number of measured requests."""


@dataclass(frozen=True, slots=True)
class Planned(JsonRecord):
    """A request to send. Raises ConfigError, naming the field, for an invalid value."""

    at: float = field(metadata=about("Seconds after the start; 0 in a closed loop.", least=0.0))
    prompt_tokens: int = field(metadata=about("Tokens of the prompt.", least=1))
    max_tokens: int = field(metadata=about("Tokens to generate.", least=1))

    def __post_init__(self) -> None:
        check_options(self)


def plan(load: Load) -> tuple[Planned, ...]:
    """Return every request of a load in the order of arrival, warm-up first.

    Raises:
        ConfigError: the trace is unreadable or too short.
    """
    if load.trace is not None:
        return _traced(load, Path(load.trace))
    count = load.warmup + (load.requests or REQUESTS)
    draw = random.Random(load.seed)
    moments = itertools.islice(_moments(load, draw), count)
    return tuple(
        Planned(at, _length(load.prompt_tokens, load.spread, draw), _length(load.output_tokens, load.spread, draw))
        for at in moments
    )


def _moments(load: Load, draw: random.Random) -> Iterator[float]:
    """Yield arrival times in seconds without end."""
    if load.arrivals == Arrivals.CLOSED:
        yield from itertools.repeat(0.0)
    if load.arrivals == Arrivals.POISSON:
        yield from itertools.accumulate(draw.expovariate(load.rate) for _ in itertools.count())
    together = load.burst if load.arrivals == Arrivals.BURST else 1
    for number in itertools.count():
        yield number // together * together / load.rate


def _length(mean: int, spread: float, draw: random.Random) -> int:
    return max(1, round(mean * draw.uniform(1 - spread, 1 + spread)))


def _traced(load: Load, path: Path) -> tuple[Planned, ...]:
    try:
        lines = path.read_text("utf-8").splitlines()
        planned = sorted((Planned.from_json(line) for line in lines if line.strip()), key=lambda one: one.at)
    except (OSError, ValueError, RequestError) as error:
        raise ConfigError(f"{path}: {error}", param="trace") from None
    end = len(planned) if load.requests is None else load.warmup + load.requests
    if not load.warmup < end <= len(planned):
        raise ConfigError(f"{path} has {len(planned)} requests, too few for {end} with warm-up", param="trace")
    return tuple(planned[:end])
