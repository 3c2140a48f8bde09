"""`GrammarTokens`: a model's vocabulary as llguidance needs it, built from the engine's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ferrum.core.errors import RequestError
from ferrum.text.tokenizer import Tokenizer, encode_middle

INSTALL: Final = "pip install 'ferrum-llm[structured]'"

LIMITS: Final[dict[str, Any]] = {"verbose_errors": False}
"""Arguments of `LLParserLimits`: the library's own limits, which end a grammar that would take too long."""


class GrammarTokens:
    """The vocabulary for compiling grammars. Making it takes a second for a large vocabulary.

    Added tokens can only be named by a grammar (`<[id]>`): text never matches them, so that a string of JSON holds no
    marker of a format. White space among them is text.

    Args:
        tokenizer: of the model.
        vocab_size: of the model, padding included.

    Attributes:
        tokenizer: as given.
        spellings: bytes by id, with those of `end`.
        end: the token that llguidance allows where a grammar may end: one after the vocabulary, since the end tokens
            are those of a request.

    Raises:
        RequestError: llguidance is not installed.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise RequestError(f"structured outputs need llguidance: {INSTALL}", param="guidance") from None
        self.tokenizer = tokenizer
        self.end = vocab_size
        vocabulary = _Vocabulary(tokenizer, vocab_size)
        self.spellings = vocabulary.tokens
        self._library: Any = LLTokenizer(vocabulary)

    def matcher(self, source: str) -> Any:
        """Compile a grammar and return its matcher. Raises RequestError with the library's reason."""
        from llguidance import LLMatcher, LLParserLimits

        matcher = LLMatcher(self._library, source, log_level=0, limits=LLParserLimits(**LIMITS))
        if matcher.is_error():
            raise RequestError(f"the grammar does not compile: {matcher.get_error().strip()}", param="guidance")
        return matcher

    def spell(self, text: bytes) -> list[int]:
        """Return tokens with the bytes of a text, which need not be whole characters."""
        tokens: list[int] = self._library.tokenize_bytes(text)
        return tokens


class _Vocabulary:
    """What `LLTokenizer` reads of a tokenizer.

    Attributes:
        tokens: bytes by id.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.eos_token_id = vocab_size
        self.tokens: Sequence[bytes] = [*map(tokenizer.token_bytes, range(vocab_size)), b"<end of grammar>"]
        markers = tokenizer.added_ids | tokenizer.special_ids
        named = [each for each in sorted(markers) if each < vocab_size]
        special = [each for each in named if self.tokens[each].strip() or tokenizer.is_special(each)]
        self.special_token_ids = [*special, vocab_size]
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text, up to the first that spells something else, as a token for unknown text does.

        The library forces what this returns.
        """
        whole = text if isinstance(text, bytes) else text.encode()
        found, spelled = [], 0
        for token in encode_middle(self._tokenizer, whole.decode()):
            if not whole.startswith(self.tokens[token], spelled):
                break
            found.append(token)
            spelled += len(self.tokens[token])
        return found
