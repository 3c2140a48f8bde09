"""The options of `ferrum bench serve`: whom to ask, for what, and what counts as well served."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from ferrum.core.errors import ConfigError
from ferrum.core.json_record import JsonRecord
from ferrum.core.option_fields import about, check_options

LOWEST_TOKEN: Final = 3
"""Prompts begin here: the ids before are the special tokens of many vocabularies."""


USUAL_VOCABULARY: Final = 256
"""Prompts end below here, but for models that have fewer tokens: all others have these."""


class Arrivals(StrEnum):
    """How requests come in. All but CLOSED are open loops: they come whether or not earlier ones are done.

    POISSON: independently of each other, `rate` a second on average. CONSTANT: evenly. BURST: `burst` at a time, the
    bursts evenly, `rate` a second on average. TRACE: at the moments that a file tells. CLOSED: `clients` of them, each
    of which sends its next request when its last one is over.
    """

    POISSON = "poisson"
    CONSTANT = "constant"
    BURST = "burst"
    TRACE = "trace"
    CLOSED = "closed"


class Endpoint(StrEnum):
    """What is asked: completions of token ids, or answers in a chat, to as many short words."""

    COMPLETIONS = "completions"
    CHAT = "chat"


_MADE: Final = tuple(each for each in Arrivals if each != Arrivals.TRACE)

_SERVED: Final = {
    "rate": (Arrivals.POISSON, Arrivals.CONSTANT, Arrivals.BURST),
    "burst": (Arrivals.BURST,),
    "clients": (Arrivals.CLOSED,),
    **dict.fromkeys(("prompt_tokens", "output_tokens", "spread", "seed"), _MADE),
}
"""The arrivals that an option has an effect on, where it is not all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(JsonRecord):
    """What a server is asked to do. Raises ConfigError, naming the field, for a value that cannot be."""

    arrivals: str = field(default="poisson", metadata=about("How requests come in.", tuple(Arrivals)))
    rate: float = field(default=1.0, metadata=about("Requests per second, but of traces and closed loops.", least=1e-9))
    burst: int = field(default=8, metadata=about("Requests that come together, with burst arrivals.", least=1))
    clients: int = field(default=16, metadata=about("Clients of a closed loop.", least=1))
    trace: str | None = field(
        default=None,
        metadata=about("File of a trace: a JSON object a line, with `at` (seconds), `prompt_tokens`, `max_tokens`."),
    )
    requests: int | None = field(
        default=None, metadata=about("Requests that are measured; none: 64, or the whole trace.", least=1)
    )
    warmup: int = field(default=4, metadata=about("Requests before them, which are not measured.", least=0))
    prompt_tokens: int = field(default=256, metadata=about("Tokens of a prompt (words of a chat's).", least=1))
    output_tokens: int = field(default=64, metadata=about("Tokens to generate.", least=1))
    spread: float = field(
        default=0.0,
        metadata=about("Lengths vary evenly by up to this part of themselves: 0.5 means 50% to 150%.", least=0.0),
    )
    seed: int = field(default=0, metadata=about("Of arrivals and lengths; prompts are new in every run."))

    def __post_init__(self) -> None:
        check_options(self)
        if self.spread >= 1:
            raise ConfigError(f"must be below 1, not {self.spread}", param="spread")
        if (self.trace is not None) != (self.arrivals == Arrivals.TRACE):
            raise ConfigError("a file and `arrivals` = trace belong together", param="trace")
        for option in fields(self):
            served = _SERVED.get(option.name, tuple(Arrivals))
            if self.arrivals not in served and getattr(self, option.name) != option.default:
                raise ConfigError(f"has no effect on {self.arrivals} arrivals", param=option.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(JsonRecord):
    """Whom to ask, and how. Raises ConfigError, naming the field, for a value that cannot be."""

    url: str = field(metadata=about("The server's, with its path: http://127.0.0.1:8000/v1."))
    model: str = field(metadata=about("Name of the model there."))
    endpoint: str = field(default="completions", metadata=about("What to ask for.", tuple(Endpoint)))
    vocabulary: int = field(
        default=USUAL_VOCABULARY, metadata=about("Prompts are of random token ids below this.", least=LOWEST_TOKEN + 1)
    )
    ignore_eos: bool = field(
        default=True,
        metadata=about("Ask for all of the tokens, by a field that vLLM, SGLang, llama.cpp and ferrum know."),
    )
    timeout: float = field(default=600.0, metadata=about("Seconds that a request may take.", least=1e-3))

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
    """A service level: the longest times with which a request is well served. Raises ConfigError for a negative one."""

    ttft: float | None = field(
        default=None, metadata=about("Well served: seconds to the first token at most.", least=0.0)
    )
    tpot: float | None = field(
        default=None, metadata=about("Well served: seconds per output token at most, after the first.", least=0.0)
    )
    e2e: float | None = field(default=None, metadata=about("Well served: seconds to the end at most.", least=0.0))

    def __post_init__(self) -> None:
        check_options(self)
