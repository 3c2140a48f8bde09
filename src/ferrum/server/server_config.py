"""The options of the server; every field tells what it does in its metadata."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from ferrum.core.errors import ConfigError
from ferrum.core.json_record import JsonRecord
from ferrum.core.option_fields import about, check_options
from ferrum.core.types import Pooling

_ORIGIN: Final = re.compile(r"\*|null|(?!http://.*:80$|https://.*:443$)[a-z][a-z0-9+.-]*://[^/?#@,\sA-Z]+")
"""Origins as browsers spell them (RFC 6454, 6.2): in small letters, without a path or the port of their scheme."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(JsonRecord):
    """How requests come in. Raises ConfigError, naming the field, for a value that cannot be."""

    host: str = field(default="127.0.0.1", metadata=about("Address to listen on."))
    port: int = field(default=8000, metadata=about("Port to listen on; 0 takes a free one.", least=0, most=65535))
    served_model_name: str | None = field(
        default=None, metadata=about("Name of the model for clients; none: the name it was loaded by.")
    )
    api_key_file: str | None = field(
        default=None,
        metadata=about("File of accepted API keys, one a line, each `key` or `name:key`; none: no key is asked for."),
    )
    key_max_live: int | None = field(
        default=None, metadata=about("Most requests of one API key that wait or run; none: as many as of all.", least=1)
    )
    key_requests_per_minute: int | None = field(
        default=None, metadata=about("Most requests of one API key in a minute; none: any.", least=1)
    )
    key_tokens_per_minute: int | None = field(
        default=None, metadata=about("Most prompt and generated tokens of one API key in a minute; none: any.", least=1)
    )
    max_sessions: int = field(
        default=64, metadata=about("Most sessions of one API key, or of all clients where there are no keys.", least=1)
    )
    session_seconds: float = field(
        default=3600.0, metadata=about("A session that nobody used for so long is dropped.", least=0.001)
    )
    strict: bool = field(default=False, metadata=about("Refuse unknown request fields instead of naming them."))
    max_body_bytes: int = field(default=16 << 20, metadata=about("Largest request body.", least=1))
    max_held_bytes: int = field(
        default=256 << 20, metadata=about("Most bytes of request bodies that are held at a time, over all.", least=1)
    )
    max_logprobs: int = field(
        default=20,
        metadata=about("Most top tokens whose log-probabilities a request may ask for at each position.", least=0),
    )
    head_seconds: float = field(
        default=15.0, metadata=about("Longest time that a request's head may take.", least=0.001)
    )
    body_seconds: float = field(default=30.0, metadata=about("Longest time that a request body may take.", least=0.001))
    request_seconds: float | None = field(
        default=None, metadata=about("Longest time that a request may wait and run; none: any.", least=0.001)
    )
    keep_alive_seconds: float = field(
        default=15.0, metadata=about("A silent stream gets a comment after this time.", least=0.001)
    )
    drain_seconds: float = field(
        default=300.0, metadata=about("How long running requests may go on after SIGTERM.", least=0.0)
    )
    pooling: str = field(
        default="auto",
        metadata=about(
            "How hidden states become an embedding; auto: as the model's files say, else their mean.",
            ("auto", *map(str, Pooling)),
        ),
    )
    otlp_traces_endpoint: str | None = field(
        default=None,
        metadata=about("Where to send OpenTelemetry traces, as in http://localhost:4318/v1/traces; none: nowhere."),
    )
    allow_origin: str | None = field(
        default=None, metadata=about("Origin that may use the server from a browser (CORS); none: no other.")
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.allow_origin is not None and not _ORIGIN.fullmatch(self.allow_origin):
            # No browser would ever name it so, and the option would have no effect.
            raise ConfigError(
                f"must be *, or as in http://localhost:3000, with nothing behind it, not {self.allow_origin!r}",
                param="allow_origin",
            )
