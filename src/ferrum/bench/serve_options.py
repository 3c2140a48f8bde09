"""Options of `ferrum bench serve`: the server, the load, and the service level."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ferrum.core.errors import ConfigError, RequestError
from ferrum.core.json_record import JsonRecord
from ferrum.core.option_fields import about, check_options, option

LOWEST_TOKEN: Final = 3
"""The lowest token id in prompts: lower ids are special tokens in many vocabularies."""

USUAL_VOCABULARY: Final = 256
"""Default bound of token ids in prompts; nearly all models have more."""


class Arrivals(StrEnum):
    """How requests arrive. All but CLOSED are open loops: requests arrive whether or not earlier ones are done.

    POISSON: independently, `rate` per second on average. CONSTANT: evenly spaced. BURST: `burst` at a time, `rate` per
    second on average. TRACE: at the times in a file. CLOSED: `clients` clients, each of which sends its next request
    when its last one is done.
    """

    POISSON = "poisson"
    CONSTANT = "constant"
    BURST = "burst"
    TRACE = "trace"
    CLOSED = "closed"


class Endpoint(StrEnum):
    """The API to call: completions of token ids, or chat with the same number of short words."""

    COMPLETIONS = "completions"
    CHAT = "chat"


_GENERATED: Final = tuple(each for each in Arrivals if each != Arrivals.TRACE)

_USED_BY: Final = {
    "rate": (Arrivals.POISSON, Arrivals.CONSTANT, Arrivals.BURST),
    "burst": (Arrivals.BURST,),
    "clients": (Arrivals.CLOSED,),
    **dict.fromkeys(("prompt_tokens", "output_tokens", "spread", "seed"), _GENERATED),
}
"""The arrivals an option has an effect on, for options that do not apply to all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(JsonRecord):
    """The requests to send. Raises ConfigError, naming the field, for an invalid value."""

    arrivals: str = option("poisson", "How requests arrive.", tuple(Arrivals))
    rate: float = option(1.0, "Requests per second of poisson, constant and burst arrivals.", least=1e-9)
    burst: int = option(8, "Requests per burst.", least=1)
    clients: int = option(16, "Concurrent clients of closed arrivals.", least=1)
    trace: str | None = option(
        None, "JSONL file with `at` (seconds), `prompt_tokens`, `max_tokens` for trace arrivals."
    )
    requests: int | None = option(None, "Measured requests (default: 64, or the whole trace).", least=1)
    warmup: int = option(4, "Requests sent first and not measured.", least=0)
    prompt_tokens: int = option(256, "Tokens per prompt (words in a chat).", least=1)
    output_tokens: int = option(64, "Tokens to generate per request.", least=1)
    spread: float = option(0.0, "Relative variation of lengths: 0.5 means 50% to 150%.", least=0.0)
    seed: int = option(0, "Seed of arrivals and lengths; prompts differ in every run.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.spread >= 1:
            raise ConfigError(f"must be below 1, not {self.spread}", param="spread")
        if self.arrivals == Arrivals.TRACE and self.trace is None:
            raise ConfigError("'trace' requires `trace`, the file", param="arrivals")
        if self.arrivals != Arrivals.TRACE and self.trace is not None:
            raise ConfigError(f"requires `arrivals` trace, not {self.arrivals}", param="trace")
        for each in fields(self):
            used_by = _USED_BY.get(each.name, tuple(Arrivals))
            if self.arrivals not in used_by and getattr(self, each.name) != each.default:
                raise ConfigError(f"has no effect on {self.arrivals} arrivals", param=each.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(JsonRecord):
    """The server to measure. Raises ConfigError, naming the field, for an invalid value."""

    url: str = option("http://127.0.0.1:8000/v1", "Base URL of an OpenAI-compatible server.")
    model: str | None = option(None, "Model name to request (default: the first one listed).", flag="served-model")
    endpoint: str = option("completions", "API to call.", tuple(Endpoint))
    vocabulary: int | None = option(
        None,
        f"Prompts hold random token ids below this (default: {USUAL_VOCABULARY}, or a smaller model's size).",
        least=LOWEST_TOKEN + 1,
    )
    ignore_eos: bool = option(True, "Generate all tokens; a request field of vLLM, SGLang, llama.cpp and ferrum.")
    timeout: float = option(600.0, "Seconds after which a request fails.", least=1e-3)

    def __post_init__(self) -> None:
        check_options(self)
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{self.url!r}: {error}", param="url") from None
        unsent = parts.query or parts.fragment or parts.username
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or unsent:
            raise ConfigError(f"must look like http://127.0.0.1:8000/v1, not {self.url!r}", param="url")


@dataclass(frozen=True, slots=True, kw_only=True)
class Level(JsonRecord):
    """A service level: upper bounds in seconds that a good request meets. Raises ConfigError for a negative one."""

    ttft: float | None = option(None, "Most seconds to the first token.", least=0.0)
    tpot: float | None = option(None, "Most seconds per token after the first.", least=0.0)
    e2e: float | None = option(None, "Most seconds to the end.", least=0.0)

    def __post_init__(self) -> None:
        check_options(self)


# ---- Arrival times and sizes of the requests `ferrum bench serve` sends, drawn before it starts ----

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
