"""`ReplyBuilder`: how a dialect turns the engine's deltas into chunks or one reply.

How chunks and replies are sent is in `generation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias
from urllib.parse import quote

from ferrum.client.diagnosis.prefix_explainer import Explanation
from ferrum.client.request_output import Delta
from ferrum.core.types import Request
from ferrum.server.common.json_bodies import Reply

CACHE: Final = "x-ferrum-cache"
"""Header with the tokens from the prefix cache and, if it is explained, the first difference to an earlier prompt."""

UNENFORCED: Final = "x-ferrum-unenforced"
"""Header with the names of tools that must be called, whose schema cannot be enforced."""

_MAX_FREE: Final = 32
_MAX_PATH: Final = 128

Finish: TypeAlias = Literal["stop", "length", "tool_calls", "function_call"]


@dataclass(frozen=True, slots=True)
class ReplyHeader:
    """What all chunks of a reply share; `fingerprint` names the arithmetic."""

    id: str
    created: int
    model: str
    fingerprint: str


def part_id(name: str, place: int) -> str:
    """Return the id of the engine's request for one of several prompts; clients' ids have no slash."""
    return f"{name}/{place}"


@dataclass(frozen=True, slots=True)
class PromptNotes:
    """What the headers of a response say of a chat's prompt.

    Attributes:
        free: names of the tools whose schema is not enforced although one must be called.
        explanation: the comparison with earlier prompts; None without `--explain-prefixes`.
    """

    free: tuple[str, ...] = ()
    explanation: Explanation | None = None

    def headers(self, first: Delta | None) -> dict[str, str]:
        """Return the headers; `first` as of `ReplyBuilder.headers`."""
        cached = None if first is None else first.cached_tokens
        fields = {} if cached is None else {"hit": str(cached)}
        if self.explanation is not None:
            fields |= self.explanation.fields(cached)
        shown = "; ".join(f"{name}={quote(value[:_MAX_PATH], safe='[]')}" for name, value in fields.items())
        free = ", ".join(self.free[:_MAX_FREE])
        return ({CACHE: shown} if shown else {}) | ({UNENFORCED: free} if free else {})


def cache_writes(page_size: int | None, prompt: int, cached: int | None) -> int:
    """Return the tokens of a prompt that were computed and put into the cache: those of whole pages.

    Args:
        page_size: tokens of a page; None: there is no cache.
        prompt: tokens of the prompt.
        cached: those from the cache; None: it is not known yet.
    """
    if page_size is None or cached is None:
        return 0
    return max(0, prompt // page_size * page_size - cached)


class TokenCounts(Protocol):
    """Tokens of a reply so far: those of its prompts once, those of all its choices."""

    prompt: int
    completion: int


class ReplyBuilder(Protocol):
    """Builds the reply to one client's request from the engine's deltas.

    Attributes:
        id: of the reply.
        requests: for the engine, one per prompt.
        usage: tokens so far.
        uniform: chunks with nothing but text differ only in that text.
    """

    id: str
    requests: tuple[Request, ...]
    uniform: bool

    @property
    def usage(self) -> TokenCounts: ...

    def headers(self, first: Delta | None) -> Mapping[str, str]:
        """Return headers of the response; `first` is the first delta, None if a keep-alive was sent before it."""

    def add(self, place: int, delta: Delta) -> None:
        """Count a delta of the request at `place`. Raises the FerrumError that ended its choice."""

    def chunks(self, place: int, delta: Delta) -> Iterable[Reply]:
        """Return the chunks of a stream for a delta that was added."""

    def end_chunks(self) -> Iterable[Reply]:
        """Return the chunks after the last delta."""

    def reply(self, choices: Mapping[tuple[int, int], Delta]) -> Reply:
        """Return the whole reply.

        Args:
            choices: by place of the request and index of the choice, its deltas joined.
        """
