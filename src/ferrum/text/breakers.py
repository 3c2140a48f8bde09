"""Sequence breakers of the sampling rule DRY as token sequences: `BreakerTokens`. The rule is in `sampling/`."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

from ferrum.text.tokenizer import Tokenizer, encode_middle

_END: Final = b"\xff"
"""Follows each token in the text of the vocabulary. No UTF-8 text contains it."""

_KEPT: Final = 16
"""Lists of breakers whose tokens are kept for other requests."""


class BreakerTokens:
    """Finds the token sequences that spell given strings. Methods are safe to call from any thread.

    Args:
        tokenizer: of the model.
        vocab_size: of the model.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self.sequences = lru_cache(maxsize=_KEPT)(self._sequences)
        """Return the token sequences of several breakers, see `_of`."""
        self._vocabulary = lru_cache(maxsize=1)(self._joined)

    def _sequences(self, breakers: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return tuple(dict.fromkeys(sequence for breaker in breakers for sequence in self._of(breaker)))

    def _of(self, breaker: str) -> Iterator[tuple[int, ...]]:
        """Yield each token that contains the breaker, and each that its beginning ends, with the tokens of the rest.

        Source: llama.cpp (`get_overlapping_token_sequences`). The breaker as the tokenizer spells it is added, since a
        token may end within a character.
        """
        whole = tuple(encode_middle(self._tokenizer, breaker))
        containing = set(self._find(breaker.encode()))
        yield from ((token,) for token in sorted(containing))
        for cut in range(1, len(breaker)):
            rest = encode_middle(self._tokenizer, breaker[cut:])
            ending = set(self._find(breaker[:cut].encode() + _END)) - containing
            yield from ((token, *rest) for token in sorted(ending))
        if whole and containing.isdisjoint(whole):
            yield whole

    def _find(self, text: bytes) -> Iterator[int]:
        """Yield the tokens that contain a text; the text may end with the end of a token."""
        vocabulary, ends = self._vocabulary()
        place = vocabulary.find(text)
        while place >= 0:
            token = bisect_right(ends, place)
            if not text.endswith(_END) or place + len(text) == ends[token]:
                yield token
            place = vocabulary.find(text, place + 1)

    def _joined(self) -> tuple[bytes, array[int]]:
        """Return the text of all tokens, each followed by `_END`, and where each ends in it."""
        texts = [self._tokenizer.token_bytes(token) + _END for token in range(self._vocab_size)]
        return b"".join(texts), array("Q", accumulate(map(len, texts)))
