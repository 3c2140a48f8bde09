"""Tokens in replies: their names, their log-probabilities, and their places in a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Final

from ferrum.client.request_output import Logprob, Logprobs
from ferrum.server.common.top_tokens import PromptLogprobs, PromptToken, finite, top
from ferrum.text.detokenizer import Detokenizer
from ferrum.text.tokenizer import Tokenizer


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


def prompt_logprobs(positions: Sequence[Logprobs | None], count: int) -> PromptLogprobs:
    """Return the prompt's log-probabilities for clients: per position the token itself and the `count` top ones."""
    return [None if position is None else _prompt_position(position, count) for position in positions]


def _prompt_position(position: Mapping[int, Logprob], count: int) -> dict[str, PromptToken]:
    first = next(iter(position.items()))
    return {
        str(token): PromptToken(logprob=finite(each.logprob), rank=each.rank, decoded_token=each.decoded_token)
        for token, each in [first, *top(position, count)]
    }


MAX_ADDED: Final = 4
"""Special tokens that a tokenizer puts before a text."""

MAX_SWALLOWED: Final = 64
"""Characters of white space that are searched for the start of a token."""


class Offsets:
    """Positions of new tokens in the text of one choice.

    Args:
        tokenizer: without one every token has the same position.
        start: characters of the choice before its first new token.
    """

    def __init__(self, tokenizer: Tokenizer | None, start: int, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._length = start
        self._detokenizer = None
        if tokenizer is not None:
            self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)

    def next(self, token: int) -> int:
        """Return the position of the next token."""
        piece = "" if self._detokenizer is None else self._detokenizer.push([token]).text
        offset = self._length + _overdue(self._tokenizer, token, piece)
        self._length += len(piece)
        return offset


def text_offsets(tokenizer: Tokenizer | None, text: str, tokens: Sequence[int]) -> list[int]:
    """Return where each token of an echoed prompt begins in its text; all 0 without a tokenizer.

    The text is the client's, or was decoded without special tokens. So not every token is in it, nor is the space that
    some tokenizers put before a first word. White space that a token swallows belongs to no token.
    """
    if tokenizer is None:
        return [0] * len(tokens)
    offsets: list[int] = []
    characters = Detokenizer(tokenizer, skip_special_tokens=False)
    place, first = 0, True
    added = _added_before(tokenizer, text, tokens)
    for token in tokens[added:]:
        special = tokenizer.is_special(token)
        piece = characters.push([token]).text
        start, found = place, piece
        if not text.startswith(found, start):
            swallowed = text[place : place + MAX_SWALLOWED]
            start, found = place + len(swallowed) - len(swallowed.lstrip()), piece.lstrip()
        if not text.startswith(found, start) or not found:
            # It is missing, or the text has a different spelling, probably of the same length.
            start, found = place, "" if special or (first and not piece.strip()) else piece
        offsets.append(start + _overdue(tokenizer, token, found))
        place, first = min(start + len(found), len(text)), special
    return [0] * added + offsets


def _added_before(tokenizer: Tokenizer, text: str, tokens: Sequence[int]) -> int:
    """Return how many special tokens the tokenizer put before a text that spells out special tokens itself."""
    spelled = [_characters_of(tokenizer, token) for token in takewhile(tokenizer.is_special, tokens)]
    most = min(len(spelled) - 1, MAX_ADDED)
    return next((added for added in range(most + 1) if text.startswith("".join(spelled[added:]))), 0)


def _overdue(tokenizer: Tokenizer | None, token: int, piece: str) -> int:
    """Return how many characters of a token's text replace an incomplete character of its predecessors."""
    if tokenizer is None or not piece.startswith("\ufffd"):
        return 0
    return max(0, len(piece) - len(_characters_of(tokenizer, token)))


def _characters_of(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of one token alone."""
    return Detokenizer(tokenizer, skip_special_tokens=False).push([token]).text
