"""The options of the HTTP server. A field's metadata has its help text.

Options of the model and the engine are in `core/config.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ferrum.core.errors import ConfigError
from ferrum.core.json_record import JsonRecord
from ferrum.core.option_fields import check_options, option
from ferrum.core.types import Pooling
from ferrum.core.values import shown

_ORIGIN: Final = re.compile(r"\*|null|(?!http://.*:80$|https://.*:443$)[a-z][a-z0-9+.-]*://[^/?#@,\sA-Z]+")
"""Origins as browsers write them (RFC 6454, 6.2): in lower case, without path or default port."""

LOG_FORMATS: Final = ("auto", "text", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(JsonRecord):
    """The options of the server. Raises ConfigError for an invalid value; `param` names the field."""

    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(8000, "Port to listen on; 0 takes a free one.", least=0, most=65535)
    served_model_name: Sequence[str] = option(
        (),
        "Model name for clients; repeat for more names (default: the name it was loaded by, of a path the last part).",
    )
    chat_template: str | None = option(None, "File with a chat template that replaces the model's own.")
    api_key_file: str | None = option(
        None, "File of accepted API keys, one per line as `key` or `name:key` (default: no key is required)."
    )
    key_max_live: int | None = option(None, "Maximum requests in progress per API key (default: --max-queue).", least=1)
    key_requests_per_minute: int | None = option(
        None, "Maximum requests per minute of an API key (default: no limit).", least=1
    )
    key_tokens_per_minute: int | None = option(
        None, "Maximum prompt and generated tokens per minute of an API key (default: no limit).", least=1
    )
    max_stored_responses: int = option(
        1000, "Maximum stored responses and threads of all API keys; the least recently used go first.", least=1
    )
    stored_responses_mib: int = option(
        256, "Maximum size of stored responses and threads, in MiB.", least=1, most=1 << 20
    )
    explain_prefixes: bool = option(
        False, "Compare the prompt of each chat with earlier ones, and say in replies why its prefix missed the cache."
    )
    strict: bool = option(False, "Reject unknown request fields instead of ignoring and naming them.")
    max_body_bytes: int = option(16 << 20, "Maximum size of a request body, in bytes.", least=1)
    max_held_bytes: int = option(256 << 20, "Maximum size of all request bodies in memory, in bytes.", least=1)
    max_logprobs: int = option(20, "Maximum top log-probabilities per position in a request.", least=0)
    head_seconds: float = option(15.0, "Maximum time to receive request headers, in seconds.", least=0.001)
    body_seconds: float = option(30.0, "Maximum time to receive a request body, in seconds.", least=0.001)
    request_seconds: float | None = option(
        None, "Maximum time of a request from arrival to its end, in seconds (default: no limit).", least=0.001
    )
    keep_alive_seconds: float = option(15.0, "Send a comment on a stream idle for this many seconds.", least=0.001)
    drain_seconds: float = option(300.0, "Maximum time for running requests after SIGTERM, in seconds.", least=0.0)
    pooling: str = option(
        "auto",
        "Pooling of hidden states for embeddings; auto takes the model's own, else the mean.",
        ("auto", *map(str, Pooling)),
    )
    reranker: str = option(
        "auto",
        "How the model scores documents; auto takes what its files say, qwen3 the prompt of Qwen3-Reranker.",
        ("auto", "qwen3"),
    )
    otlp_traces_endpoint: str | None = option(
        None, "URL for OpenTelemetry traces, as in http://localhost:4318/v1/traces (default: no traces)."
    )
    allow_origin: str | None = option(
        None, "Origin whose pages may use the server (CORS), or * for all (default: same origin only)."
    )
    allow_runtime_lora: bool = option(
        False, "Let clients load and unload adapters below --lora-root (/v1/load_lora_adapter)."
    )
    lora_root: str | None = option(None, "Directory of the adapters that clients may load (default: none).")
    log_format: str = option("auto", "Format of log lines; auto takes text on a terminal, else json.", LOG_FORMATS)

    @property
    def logs_text(self) -> bool:
        """Whether log lines are text, not JSON."""
        terminal = sys.stderr is not None and sys.stderr.isatty()
        return self.log_format == "text" or (self.log_format == "auto" and terminal)

    def __post_init__(self) -> None:
        check_options(self)
        if self.allow_runtime_lora and self.lora_root is None:
            raise ConfigError("is required by --allow-runtime-lora", param="lora_root")
        given: Any = self.served_model_name
        names = tuple(given) if isinstance(given, list | tuple) else (given,)
        if not all(isinstance(each, str) and each for each in names):
            raise ConfigError(f"must be texts that are not empty, not {shown(given)}", param="served_model_name")
        object.__setattr__(self, "served_model_name", names)
        # A browser never sends an origin of another form, so the option would have no effect.
        if self.allow_origin is not None and not _ORIGIN.fullmatch(self.allow_origin):
            wanted = "* or an origin as in http://localhost:3000"
            raise ConfigError(f"must be {wanted}, not {self.allow_origin!r}", param="allow_origin")
