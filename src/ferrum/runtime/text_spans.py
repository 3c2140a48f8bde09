"""A text as spans of tokens, for programs that run a model over it."""

from __future__ import annotations

from collections.abc import Sequence

from ferrum.text.tokenizer import Tokenizer


def opening(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that begin every text: the begin token, or none."""
    before = tokenizer.encode("")[:1]
    return before if before == [tokenizer.bos_token_id] else []


def text_spans(tokens: Sequence[int], start: Sequence[int], longest: int) -> list[tuple[int, ...]]:
    """Return the tokens of a text in parts of at most `longest`, each after the tokens that begin a text."""
    size = longest - len(start)
    return [(*start, *tokens[begin : begin + size]) for begin in range(0, len(tokens), size)]
