"""llguidance over single bytes: which texts a grammar accepts, and random texts of a grammar."""

from __future__ import annotations

import random
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

_END: Final = 256


class _Bytes:
    """A tokenizer whose tokens are the bytes, and an end token."""

    eos_token_id = _END
    bos_token_id = None
    tokens: Final = [*(bytes([each]) for each in range(_END)), b"<end>"]
    special_token_ids: Final = [_END]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


_TOKENIZER: Final = LLTokenizer(TokenizerWrapper(_Bytes()))


class ByteMatcher:
    """The texts of one grammar.

    Args:
        source: in llguidance's form.
    """

    def __init__(self, source: str) -> None:
        self._start: Any = LLMatcher(_TOKENIZER, source, log_level=0)
        assert not self._start.is_error(), self._start.get_error()

    def accepts(self, text: str) -> bool:
        """Return whether a text is complete in the grammar."""
        matcher, tokens = self._start.deep_copy(), list(text.encode())
        taken = matcher.try_consume_tokens(tokens)
        return bool(taken == len(tokens) and matcher.is_accepting())

    def random_text(self, draw: random.Random, most: int = 200) -> str | None:
        """Return a text of the grammar; None if it does not end soon. Ends and marks of JSON are preferred."""
        matcher, found = self._start.deep_copy(), bytearray()
        while len(found) < most:
            mask = matcher.compute_bitmask()
            allowed = [each for each in range(_END + 1) if mask[each // 8] >> each % 8 & 1]
            likely = [each for each in allowed if each == _END or each in b'"}],:ab01']
            if matcher.is_stopped() or not allowed:
                break
            token = draw.choice(likely if likely and draw.random() < 0.85 else allowed)
            if token == _END:
                break
            assert matcher.consume_token(token)
            found.append(token)
        return found.decode() if matcher.is_accepting() else None
