"""What is checked of a span before anything runs, whichever door it came through."""

from __future__ import annotations

from collections.abc import Sequence

from ferrum.core.errors import ContextOverflow, InvalidToken


def check_tokens(
    tokens: Sequence[int], start: int, *, vocab_size: int, max_sequence_length: int, param: str = "tokens"
) -> None:
    """Refuse tokens that the model does not have, and more of them than its context holds.

    Args:
        tokens: ids.
        start: stored tokens before them.
        vocab_size: ids are below it.
        max_sequence_length: most tokens of a sequence.
        param: the caller's name for `tokens`.

    Raises:
        InvalidToken: an id is not in [0, vocab_size).
        ContextOverflow: the sequence would be too long.
    """
    for position, token in enumerate(tokens):
        if not 0 <= token < vocab_size:
            raise InvalidToken(f"id {token} at position {position} is not in [0, {vocab_size})", param=param)
    if start + len(tokens) > max_sequence_length:
        length = start + len(tokens)
        raise ContextOverflow(f"{length} tokens are more than the context of {max_sequence_length}", param=param)
