"""Log-probabilities for clients: how many may be asked for, the names of their tokens, and JSON numbers."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import ConfigDict, SkipValidation, with_config
from typing_extensions import TypedDict

from ferrum.client.request_output import Logprob, Logprobs
from ferrum.server.common.field_rules import TOP_TOKENS, Integer

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


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can represent."""
    return max(logprob, MINUS_INFINITY)


def top(position: Logprobs, count: int) -> list[tuple[int, Logprob]]:
    """Return the `count` most likely tokens of a position, best first; all of them for a negative count."""
    ranked = sorted(position.items(), key=lambda item: item[1].rank)
    return [item for item in ranked if count < 0 or item[1].rank <= count]
