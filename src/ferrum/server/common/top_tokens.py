"""Log-probabilities for clients: how many may be asked for, the names of their tokens, and JSON numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeAlias

from pydantic import ConfigDict, SkipValidation, with_config
from typing_extensions import TypedDict

from ferrum.client.request_output import Logprob, Logprobs
from ferrum.server.common.error_replies import invalid
from ferrum.server.common.field_rules import TOP_TOKENS, Integer
from ferrum.text.tokenizer import Tokenizer

MAX_TOP_LOGPROBS: Final = 20

TopTokens: TypeAlias = Annotated[int, Integer(0, MAX_TOP_LOGPROBS, TOP_TOKENS)]

MINUS_INFINITY: Final = -9999.0
"""JSON has no infinities."""


@with_config(ConfigDict(extra="forbid"))
class PromptToken(TypedDict):
    """A token at a position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str | None


PromptLogprobs = SkipValidation[list[dict[str, PromptToken] | None]]
"""Per prompt token the requested ids, the token itself first; None for the first token."""


def check_top_tokens(field: str, count: int, limit: int) -> None:
    """Refuse more top tokens of a position than the server's limit. Raises RequestError."""
    if not 0 <= count <= limit:
        raise invalid(field, f"must be 0 to {limit}, not {count}")


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


def _prompt_position(position: Mapping[int, Logprob], count: int) -> dict[str, PromptToken]:
    first = next(iter(position.items()))
    return {
        str(token): PromptToken(logprob=finite(each.logprob), rank=each.rank, decoded_token=each.decoded_token)
        for token, each in [first, *top(position, count)]
    }
