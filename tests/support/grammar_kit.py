"""A matcher of llguidance over a toy vocabulary, and random texts of grammars."""

from __future__ import annotations

import random
from collections.abc import Sequence

import llguidance
import llguidance.numpy
import numpy as np

from format_kit import ToyTokenizer


class _Vocabulary:
    """What `LLTokenizer` reads of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: ToyTokenizer) -> None:
        self.eos_token_id = 256
        self.tokens = [tokenizer.token_bytes(each) or b"<end>" for each in range(tokenizer.vocab_size)]
        self.special_token_ids = [*range(256, tokenizer.vocab_size)]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class ToyMatcher:
    """Matches tokens of a toy vocabulary with a grammar."""

    def __init__(self, source: str, tokenizer: ToyTokenizer) -> None:
        self.tokenizer = tokenizer
        self._library = llguidance.LLTokenizer(_Vocabulary(tokenizer), slices=[])
        self.matcher = llguidance.LLMatcher(self._library, source, log_level=0)
        assert not self.matcher.is_error(), f"{self.matcher.get_error()}\n{source}"

    def accepts(self, text: str) -> bool:
        """Return whether a text is complete in the grammar."""
        matcher = self.matcher.deep_copy()
        ids = self.tokenizer.encode(text)
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    def rest(self, text: str) -> str | None:
        """Return a text without its longest beginning that is complete in the grammar and without special tokens."""
        matcher = self.matcher.deep_copy()
        ids, complete = self.tokenizer.encode(text), -1
        for index, token in enumerate(ids, 1):
            if matcher.is_stopped() or matcher.try_consume_tokens([token]) == 0:
                break
            complete = index if matcher.is_accepting() else complete
        return None if complete < 0 else self.tokenizer.decode(ids[complete:])

    def refused_at(self, text: str) -> str:
        """Return the part of a text that the grammar allows, for messages."""
        ids = self.tokenizer.encode(text)
        allowed = self.matcher.deep_copy().try_consume_tokens(ids)
        return self.tokenizer.decode(ids[:allowed], skip_special_tokens=False)

    def walk(self, chance: random.Random, hints: Sequence[str], limit: int = 300) -> list[int] | None:
        """Return random tokens of the grammar up to its end; None if it did not end within the limit.

        Args:
            hints: texts that end things, which are tried often.
        """
        matcher = self.matcher.deep_copy()
        found: list[int] = []
        bits = llguidance.numpy.allocate_token_bitmask(1, self.tokenizer.vocab_size)
        while len(found) < limit:
            if matcher.is_accepting() and (matcher.is_stopped() or chance.random() < 0.7):
                return found
            hint = self.tokenizer.encode(chance.choice(hints)) if chance.random() < 0.6 else []
            if not hint or matcher.validate_tokens(hint) < len(hint):
                llguidance.numpy.fill_next_token_bitmask(matcher, bits)
                allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
                allowed = allowed[allowed != 256]
                if not len(allowed):
                    return found if matcher.is_accepting() else None
                hint = [int(chance.choice(allowed))]
            assert matcher.consume_tokens(hint)
            found += hint
        return None
