"""`ReplyBuilder`: how a dialect turns the engine's deltas into chunks or one reply.

How chunks and replies are sent is in `generation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from ferrum.client.request_output import Delta
from ferrum.core.types import Request
from ferrum.server.common.json_bodies import Reply
from ferrum.server.common.prefix_report import PrefixReport

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
        prefix: what a chat's prompt shares with earlier ones; None for other prompts.
    """

    id: str
    requests: tuple[Request, ...]
    uniform: bool

    @property
    def prefix(self) -> PrefixReport | None: ...

    @property
    def usage(self) -> TokenCounts: ...

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
