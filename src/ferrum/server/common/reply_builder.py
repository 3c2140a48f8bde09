"""`ReplyBuilder`: how a dialect turns the engine's deltas into chunks or one reply.

How chunks and replies are sent is in `generation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from ferrum.core.errors import StepError
from ferrum.core.types import FinishReason, Request
from ferrum.engine.request_output import Delta
from ferrum.server.common.error_replies import CancelledError, DeadlineError
from ferrum.server.common.json_bodies import Reply

Finish: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class ReplyHeader:
    """What all chunks of a reply share; `fingerprint` names the arithmetic."""

    id: str
    created: int
    model: str
    fingerprint: str


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


def finish_of(delta: Delta) -> Finish | None:
    """Return how a choice ended, None if it goes on.

    Raises:
        FerrumError: it was cancelled, timed out or failed.
    """
    match delta.finish_reason:
        case None:
            return None
        case FinishReason.STOP:
            return "stop"
        case FinishReason.LENGTH:
            return "length"
        case FinishReason.ABORT:
            raise CancelledError("the request was cancelled")
        case FinishReason.DEADLINE:
            raise DeadlineError("the request exceeded the server's time limit (--request-seconds)")
        case FinishReason.ERROR:
            raise delta.error or StepError("the step failed")
