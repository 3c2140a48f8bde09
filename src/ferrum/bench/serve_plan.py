"""When requests arrive and how large they are: what `ferrum bench serve` asks of a server, drawn before it begins."""

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


@dataclass(frozen=True, slots=True)
class Planned(JsonRecord):
    """A request to be sent. Raises ConfigError, naming the field, for a value that cannot be."""

    at: float = field(metadata=about("Seconds after the start; 0 in a closed loop.", least=0.0))
    prompt_tokens: int = field(metadata=about("Tokens of the prompt.", least=1))
    max_tokens: int = field(metadata=about("How many to generate.", least=1))

    def __post_init__(self) -> None:
        check_options(self)


REQUESTS: Final = 64
"""Measured requests where nothing says how many."""


def plan(load: Load) -> tuple[Planned, ...]:
    """Every request of a load, those of the warm-up first, in the order of their arrival.

    Raises:
        ConfigError: the trace cannot be used.
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
    """Seconds after the start at which requests arrive, without an end."""
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
        raise ConfigError(f"{path} has {len(planned)} requests, too few", param="trace")
    return tuple(planned[:end])
