"""The options of the server; every field tells what it does in its metadata."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from ferrum.core.errors import ConfigError
from ferrum.core.serial import JsonRecord
from ferrum.core.types import Pooling

_PORTS: Final = range(65536)


def _about(help: str, least: float | None = None) -> dict[str, Any]:
    return {"help": help, "least": least}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(JsonRecord):
    """How requests come in. Raises ConfigError, naming the field, for a value that cannot be."""

    host: str = field(default="127.0.0.1", metadata=_about("Address to listen on."))
    port: int = field(default=8000, metadata=_about("Port to listen on; 0 takes a free one."))
    served_model_name: str | None = field(
        default=None, metadata=_about("Name of the model for clients; none: the name it was loaded by.")
    )
    api_key_file: str | None = field(
        default=None,
        metadata=_about("File of accepted API keys, one a line, each `key` or `name:key`; none: no key is asked for."),
    )
    strict: bool = field(default=False, metadata=_about("Refuse unknown request fields instead of naming them."))
    max_body_bytes: int = field(default=16 << 20, metadata=_about("Largest request body.", 1))
    head_seconds: float = field(default=15.0, metadata=_about("Longest time that a request's head may take.", 0.001))
    body_seconds: float = field(default=30.0, metadata=_about("Longest time that a request body may take.", 0.001))
    request_seconds: float | None = field(
        default=None, metadata=_about("Longest time that a request may wait and run; none: any.", 0.001)
    )
    keep_alive_seconds: float = field(
        default=15.0, metadata=_about("A silent stream gets a comment after this time.", 0.001)
    )
    drain_seconds: float = field(
        default=300.0, metadata=_about("How long running requests may go on after SIGTERM.", 0.0)
    )
    pooling: str = field(
        default="mean",
        metadata={**_about("How hidden states become an embedding."), "choices": tuple(map(str, Pooling))},
    )
    allow_origin: str | None = field(
        default=None, metadata=_about("Origin that may use the server from a browser (CORS); none: no other.")
    )

    def __post_init__(self) -> None:
        if self.port not in _PORTS:
            raise ConfigError(f"must be in 0..65535, not {self.port}", param="port")
        for each in fields(self):
            value, least = getattr(self, each.name), each.metadata.get("least")
            choices = each.metadata.get("choices")
            if choices is not None and value not in choices:
                raise ConfigError(f"must be one of {', '.join(choices)}, not {value!r}", param=each.name)
            if least is not None and value is not None and value < least:
                raise ConfigError(f"must be at least {least}, not {value}", param=each.name)
