"""What chats and completions have in common: the head of every chunk, token counts, and the names of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ferrum.core.errors import StepError
from ferrum.core.types import FinishReason, Request
from ferrum.engine.request_output import Delta, Logprob, Logprobs
from ferrum.server.error_replies import CancelledError, DeadlineError
from ferrum.server.reply_bodies import (
    CompletionDetails,
    Finish,
    PromptDetails,
    PromptLogprobs,
    PromptToken,
    Reply,
    Usage,
)
from ferrum.server.request_bodies import StreamOptions
from ferrum.text.tokenizer import Tokenizer

MINUS_INFINITY: Final = -9999.0
"""JSON has no infinities."""


class ReplyBuilder(Protocol):
    """One client's request: what the engine has to do, and how its news become a reply."""

    @property
    def id(self) -> str:
        """The id of the reply."""
        ...

    @property
    def requests(self) -> Sequence[Request]:
        """For the engine, one per prompt."""
        ...

    @property
    def tally(self) -> UsageCounter:
        """What it cost so far."""
        ...

    @property
    def uniform(self) -> bool:
        """Whether chunks that tell of text alone are alike but for that text, and all that they do is counted."""
        ...

    def push(self, place: int, delta: Delta) -> Iterator[Reply]:
        """The chunks of a delta of the request at `place`. Raises FerrumError where the delta tells of a failure."""
        ...

    def end(self) -> Iterator[Reply]:
        """The chunks after the last delta."""
        ...

    def fold(self, chunks: Sequence[Reply]) -> Reply:
        """All chunks as one reply."""
        ...


@dataclass(frozen=True, slots=True)
class ReplyHeader:
    """What all chunks of a reply share."""

    id: str
    created: int
    model: str
    fingerprint: str

    def fields(self) -> dict[str, Any]:
        """As the fields of a chunk."""
        return {"id": self.id, "created": self.created, "model": self.model, "system_fingerprint": self.fingerprint}


class UsageCounter:
    """Tokens of a job: those of its prompts once, and those of all its choices.

    Args:
        requests: of the job.
        options: what a client wants to know of them while they come, and at the end.

    Attributes:
        at_end: whether one more chunk tells them.
        in_each: whether every chunk does.
    """

    def __init__(self, requests: Sequence[Request], options: StreamOptions | None) -> None:
        self.in_each = bool(options and options.continuous_usage_stats)
        self.at_end = bool(options and options.include_usage)
        self.prompt = sum(len(request.prompt) for request in requests)
        self.completion = 0
        self.cached = self.accepted = self.rejected = 0

    def count(self, delta: Delta) -> None:
        """Add a delta."""
        self.completion += len(delta.token_ids)
        if delta.usage is not None:
            self.cached += delta.usage.cached_tokens
            self.accepted += delta.usage.accepted_prediction_tokens
            self.rejected += delta.usage.rejected_prediction_tokens

    def of_chunk(self) -> dict[str, Usage | None]:
        """What a chunk tells of them: all so far, null where that is for the last one, or nothing."""
        if self.in_each:
            return {"usage": self.usage()}
        return {"usage": None} if self.at_end else {}

    def usage(self) -> Usage:
        """As clients see it."""
        return Usage(
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
            total_tokens=self.prompt + self.completion,
            prompt_tokens_details=PromptDetails(cached_tokens=self.cached),
            completion_tokens_details=CompletionDetails(
                reasoning_tokens=0,
                accepted_prediction_tokens=self.accepted,
                rejected_prediction_tokens=self.rejected,
            ),
        )


class TokenNamer:
    """Tokens by name.

    Args:
        tokenizer: without one a token is called by its id.
        by_id: call every token by its id.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, by_id: bool) -> None:
        self._tokenizer = None if by_id else tokenizer
        self._tokenizer_of_bytes = tokenizer
        self._bytes: dict[int, list[int]] = {}

    def text(self, token: int, entry: Logprob) -> str:
        """A token's text, or `token_id:N`."""
        if self._tokenizer is None or entry.decoded_token is None:
            return f"token_id:{token}"
        return entry.decoded_token

    def spelled(self, token: int) -> str:
        """A token's text, `bytes:` and its bytes where they are no text of their own, or `token_id:N`."""
        if self._tokenizer is None:
            return f"token_id:{token}"
        raw = self._tokenizer.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:  # most of a vocabulary's parts of characters would else have one name, U+FFFD
            return "bytes:" + raw.decode("ascii", "backslashreplace")

    def bytes(self, token: int) -> list[int] | None:
        """A token's bytes, the same list each time; None without a tokenizer."""
        if self._tokenizer_of_bytes is None:
            return None
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = list(self._tokenizer_of_bytes.token_bytes(token))
        return known


def finish_of(delta: Delta) -> Finish | None:
    """How a choice ended well, if it did.

    Raises:
        FerrumError: it ended otherwise.
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
            raise DeadlineError("the request took longer than it may")
        case FinishReason.ERROR:
            raise delta.error or StepError("the step failed")


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return max(logprob, MINUS_INFINITY)


def top(position: Logprobs, count: int) -> list[tuple[int, Logprob]]:
    """The `count` most likely tokens of a position, best first; all of them for a negative count."""
    ranked = sorted(position.items(), key=lambda item: item[1].rank)
    return [item for item in ranked if count < 0 or item[1].rank <= count]


def prompt_logprobs(positions: Sequence[Logprobs | None], count: int) -> PromptLogprobs:
    """The prompt's log-probabilities as clients see them: the token itself, then `count` of the likeliest."""
    return [None if position is None else _prompt_position(position, count) for position in positions]


def _prompt_position(position: Logprobs, count: int) -> dict[str, PromptToken]:
    first = next(iter(position.items()))
    return {
        str(token): PromptToken(logprob=finite(each.logprob), rank=each.rank, decoded_token=each.decoded_token)
        for token, each in [first, *top(position, count)]
    }
