"""`OpenAIBuilder`: what chats and completions share in turning the engine's deltas into chunks or one reply.

The shapes of chunks and replies are in `chat_completions` and `completions`, how they are sent is in `generation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ferrum.client.request_output import Delta, Logprob, Logprobs
from ferrum.core.types import Request
from ferrum.server.common.generation import finish_of
from ferrum.server.common.reply_builder import ReplyHeader
from ferrum.server.openai.bodies import GenerationBody, StreamOptions
from ferrum.server.openai.checks import CheckedRequest
from ferrum.server.openai.replies import (
    CompletionDetails,
    PromptDetails,
    PromptLogprobs,
    PromptToken,
    Usage,
)
from ferrum.text.tokenizer import Tokenizer

MINUS_INFINITY: Final = -9999.0
"""JSON has no infinities."""


class OpenAIBuilder:
    """What the builders of chats and completions share.

    Args:
        header: of every chunk.
        body: as the client sent it.
        checked: the engine's requests for it.
        tokenizer: names tokens; None: they are named by id.
    """

    def __init__(
        self, header: ReplyHeader, body: GenerationBody, checked: CheckedRequest, tokenizer: Tokenizer | None
    ) -> None:
        self.id = header.id
        self.requests = checked.requests
        self.usage = UsageCounter(checked.requests, body.stream_options)
        self.uniform = not (body.return_token_ids or self.usage.in_each)
        self._header: dict[str, Any] = {
            "id": header.id,
            "created": header.created,
            "model": header.model,
            "system_fingerprint": header.fingerprint,
        }
        self._notes = checked.notes
        self._prefixes = checked.prefixes
        self._token_ids = bool(body.return_token_ids)
        self._namer = TokenNamer(tokenizer, by_id=bool(body.return_tokens_as_token_ids))

    def headers(self, first: Delta | None) -> Mapping[str, str]:
        """Return headers of the response."""
        return {} if self._notes is None else self._notes.headers(first)

    def add(self, place: int, delta: Delta) -> None:  # noqa: ARG002 - a `ReplyBuilder` may need the place
        """Count a delta. Raises the FerrumError that ended its choice."""
        finish_of(delta)
        self.usage.count(delta)


class UsageCounter:
    """Tokens of a reply: those of its prompts once, and those of all its choices.

    Args:
        requests: of the reply.
        options: what a client wants to see of them in a stream.

    Attributes:
        at_end: one more chunk at the end of a stream shows them.
        in_each: every chunk does.
    """

    def __init__(self, requests: Sequence[Request], options: StreamOptions | None) -> None:
        continuous = bool(options and options.continuous_usage_stats)
        wanted = None if options is None else options.include_usage
        self.at_end = continuous if wanted is None else wanted
        self.in_each = continuous and self.at_end
        self.prompt = sum(len(request.prompt) for request in requests)
        self.completion = 0
        self.cached = self.accepted = self.rejected = self.reasoning = 0

    def count(self, delta: Delta) -> None:
        """Add the tokens of a delta."""
        self.completion += len(delta.token_ids)
        if delta.usage is not None:
            self.cached += delta.usage.cached_tokens
            self.accepted += delta.usage.accepted_prediction_tokens
            self.rejected += delta.usage.rejected_prediction_tokens
            self.reasoning += delta.usage.reasoning_tokens

    def fields(self, unsent: int = 0) -> dict[str, Any]:
        """Return the field of a chunk: the usage so far, null before the end of the stream, or nothing.

        Details are left out, since cached tokens are known only at the end of a request.

        Args:
            unsent: tokens that a later chunk sends.
        """
        if self.in_each:
            completion = self.completion - unsent
            total = self.prompt + completion
            return {"usage": Usage(prompt_tokens=self.prompt, completion_tokens=completion, total_tokens=total)}
        return {"usage": None} if self.at_end else {}

    def usage(self) -> Usage:
        """Return the usage at the end as clients see it."""
        return Usage(
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
            total_tokens=self.prompt + self.completion,
            prompt_tokens_details=PromptDetails(cached_tokens=self.cached),
            completion_tokens_details=CompletionDetails(
                reasoning_tokens=self.reasoning,
                accepted_prediction_tokens=self.accepted,
                rejected_prediction_tokens=self.rejected,
            ),
        )


class TokenNamer:
    """Names tokens for clients.

    Args:
        tokenizer: without one a token is named by its id.
        by_id: name every token by its id.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, by_id: bool) -> None:
        self._tokenizer = None if by_id else tokenizer
        self._tokenizer_of_bytes = tokenizer
        self._bytes: dict[int, list[int]] = {}

    def text(self, token: int, entry: Logprob) -> str:
        """Return a token's text, or `token_id:N`."""
        if self._tokenizer is None or entry.decoded_token is None:
            return f"token_id:{token}"
        return entry.decoded_token

    def spelled(self, token: int) -> str:
        """Return a token's text, `bytes:` and its bytes if they are not valid text, or `token_id:N`."""
        if self._tokenizer is None:
            return f"token_id:{token}"
        raw = self._tokenizer.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:  # most parts of characters would share one name, U+FFFD
            return "bytes:" + raw.decode("ascii", "backslashreplace")

    def bytes(self, token: int) -> list[int] | None:
        """Return a token's bytes, the same list each time; None without a tokenizer."""
        if self._tokenizer_of_bytes is None:
            return None
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = list(self._tokenizer_of_bytes.token_bytes(token))
        return known


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can represent."""
    return max(logprob, MINUS_INFINITY)


def top(position: Logprobs, count: int) -> list[tuple[int, Logprob]]:
    """Return the `count` most likely tokens of a position, best first; all of them for a negative count."""
    ranked = sorted(position.items(), key=lambda item: item[1].rank)
    return [item for item in ranked if count < 0 or item[1].rank <= count]


def prompt_logprobs(positions: Sequence[Logprobs | None], count: int) -> PromptLogprobs:
    """Return the prompt's log-probabilities for clients: per position the token itself and the `count` top ones."""
    return [None if position is None else _prompt_position(position, count) for position in positions]


def _prompt_position(position: Logprobs, count: int) -> dict[str, PromptToken]:
    first = next(iter(position.items()))
    return {
        str(token): PromptToken(logprob=finite(each.logprob), rank=each.rank, decoded_token=each.decoded_token)
        for token, each in [first, *top(position, count)]
    }
