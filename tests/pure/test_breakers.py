"""Sequence breakers of DRY as token sequences: every token that contains one, and every overlap with one."""

from __future__ import annotations

import pytest

from engine_fakes import LetterTokenizer, greedy, input_processor
from ferrum.core.errors import RequestError
from ferrum.text.breakers import BreakerTokens

PIECES = ["a", "b", "c", "d", "ab", "xab", "bcd", "abcd", "ax", "ba", "\u2014", "\n", "x\n", "\n\n"]


class PieceTokenizer(LetterTokenizer):
    """A tokenizer of given pieces, the longest first; its last two tokens are the bytes of a character."""

    vocab_size = len(PIECES) + 2

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if text == "\u00e9":
            return [len(PIECES), len(PIECES) + 1]
        longest = max(filter(text.startswith, PIECES), key=len, default="")
        return [PIECES.index(longest), *self.encode(text[len(longest) :])] if longest else []

    def token_bytes(self, token_id: int) -> bytes:
        return [*(each.encode() for each in PIECES), b"\xc3", b"\xa9"][token_id]


def spelled(*breakers: str) -> set[tuple[bytes, ...]]:
    tokenizer = PieceTokenizer()
    found = BreakerTokens(tokenizer, tokenizer.vocab_size).sequences(breakers)  # type: ignore[arg-type]
    assert len(set(found)) == len(found)
    return {tuple(map(tokenizer.token_bytes, each)) for each in found}


def test_every_token_that_contains_a_breaker_is_one() -> None:
    assert spelled("\n") == {(b"\n",), (b"x\n",), (b"\n\n",)}
    assert spelled("ab") >= {(b"ab",), (b"xab",), (b"abcd",)}


def test_a_token_that_ends_with_the_begin_of_a_breaker_is_one_with_the_rest() -> None:
    overlaps = spelled("abcd") - {(b"abcd",)}
    assert overlaps == {(b"a", b"bcd"), (b"ba", b"bcd"), (b"ab", b"c", b"d"), (b"xab", b"c", b"d")}
    assert spelled("\n\n") == {(b"\n\n",), (b"\n", b"\n"), (b"x\n", b"\n")}


def test_a_breaker_inside_tokens_of_bytes_is_their_sequence() -> None:
    assert spelled("\u00e9") == {(b"\xc3", b"\xa9")}


def test_breakers_are_resolved_only_with_dry() -> None:
    colon = LetterTokenizer().encode(":")
    request = input_processor().process("a", greedy(dry_multiplier=1.0, dry_sequence_breakers=[":"]))
    assert request.dry_sequence_breakers == (tuple(colon),)
    assert input_processor().process("a", greedy()).dry_sequence_breakers == ()


def test_breakers_need_a_tokenizer_and_dry_without_them_does_not() -> None:
    processor = input_processor(text=False)
    with pytest.raises(RequestError, match="empty list") as caught:
        processor.process([1], greedy(dry_multiplier=1.0))
    assert caught.value.param == "dry_sequence_breakers"
    assert processor.process([1], greedy(dry_multiplier=1.0, dry_sequence_breakers=[])).dry_sequence_breakers == ()


def test_an_error_in_a_breaker_names_the_field() -> None:
    tokenizer = LetterTokenizer()

    def refuse(text: str, *, add_special_tokens: bool = True) -> list[int]:
        raise RequestError("contains a lone surrogate", param="prompt")

    processor = input_processor()
    tokenizer.encode = refuse  # type: ignore[method-assign]
    processor._breakers = BreakerTokens(tokenizer, tokenizer.vocab_size)  # type: ignore[arg-type]
    with pytest.raises(RequestError) as caught:
        processor.process([1], greedy(dry_multiplier=1.0))
    assert caught.value.param == "dry_sequence_breakers"
