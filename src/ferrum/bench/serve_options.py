"""Options of `ferrum bench serve`: the server, the load, and the service level."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from ferrum.core.errors import ConfigError
from ferrum.core.json_record import JsonRecord
from ferrum.core.option_fields import about, check_options

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

    arrivals: str = field(default="poisson", metadata=about("How requests arrive.", tuple(Arrivals)))
    rate: float = field(
        default=1.0, metadata=about("Requests per second of poisson, constant and burst arrivals.", least=1e-9)
    )
    burst: int = field(default=8, metadata=about("Requests per burst.", least=1))
    clients: int = field(default=16, metadata=about("Concurrent clients of closed arrivals.", least=1))
    trace: str | None = field(
        default=None,
        metadata=about("JSONL file with `at` (seconds), `prompt_tokens`, `max_tokens` for trace arrivals."),
    )
    requests: int | None = field(
        default=None, metadata=about("Measured requests (default: 64, or the whole trace).", least=1)
    )
    warmup: int = field(default=4, metadata=about("Requests sent first and not measured.", least=0))
    prompt_tokens: int = field(default=256, metadata=about("Tokens per prompt (words in a chat).", least=1))
    output_tokens: int = field(default=64, metadata=about("Tokens to generate per request.", least=1))
    spread: float = field(
        default=0.0, metadata=about("Relative variation of lengths: 0.5 means 50% to 150%.", least=0.0)
    )
    seed: int = field(default=0, metadata=about("Seed of arrivals and lengths; prompts differ in every run."))

    def __post_init__(self) -> None:
        check_options(self)
        if self.spread >= 1:
            raise ConfigError(f"must be below 1, not {self.spread}", param="spread")
        if self.arrivals == Arrivals.TRACE and self.trace is None:
            raise ConfigError("'trace' requires `trace`, the file", param="arrivals")
        if self.arrivals != Arrivals.TRACE and self.trace is not None:
            raise ConfigError(f"requires `arrivals` trace, not {self.arrivals}", param="trace")
        for option in fields(self):
            used_by = _USED_BY.get(option.name, tuple(Arrivals))
            if self.arrivals not in used_by and getattr(self, option.name) != option.default:
                raise ConfigError(f"has no effect on {self.arrivals} arrivals", param=option.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(JsonRecord):
    """The server to measure. Raises ConfigError, naming the field, for an invalid value."""

    url: str = field(default="http://127.0.0.1:8000/v1", metadata=about("Base URL of an OpenAI-compatible server."))
    model: str | None = field(
        default=None, metadata=about("Model name to request (default: the first one listed).", flag="served-model")
    )
    endpoint: str = field(default="completions", metadata=about("API to call.", tuple(Endpoint)))
    vocabulary: int | None = field(
        default=None,
        metadata=about(
            f"Prompts hold random token ids below this (default: {USUAL_VOCABULARY}, or a smaller model's size).",
            least=LOWEST_TOKEN + 1,
        ),
    )
    ignore_eos: bool = field(
        default=True,
        metadata=about("Generate all tokens; a request field of vLLM, SGLang, llama.cpp and ferrum."),
    )
    timeout: float = field(default=600.0, metadata=about("Seconds after which a request fails.", least=1e-3))

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

    ttft: float | None = field(default=None, metadata=about("Most seconds to the first token.", least=0.0))
    tpot: float | None = field(default=None, metadata=about("Most seconds per token after the first.", least=0.0))
    e2e: float | None = field(default=None, metadata=about("Most seconds to the end.", least=0.0))

    def __post_init__(self) -> None:
        check_options(self)
