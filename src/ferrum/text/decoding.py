"""From a vocabulary entry to the bytes it adds to a text.

A tokenizer file describes its decoder as a small pipeline over token strings. Here that pipeline is reduced to a rule
per token, which is what incremental decoding needs: a text is the concatenation of its tokens' bytes, decoded once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from ferrum.core.errors import Unsupported

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_of_letter() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for: 256 entries.

    Printable Latin-1 characters stand for themselves, the other bytes in ascending order for the characters from
    U+0100 on: the alphabet of GPT-2's byte-level BPE (Radford et al., 2019, section 2.2, and its published encoder).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}


@dataclass(frozen=True, slots=True)
class DecodingRules:
    """A decoder pipeline as a rule per token.

    Attributes:
        replacements: (old, new, new in a text's first token), applied to the token string in order.
        alphabet: what the letters then mean: themselves, themselves with `<0xAB>` for single bytes, or bytes.
        separator: stands before every token but a text's first.
        strip: a character that is taken off the front of a whole text, and how often at most.
    """

    replacements: tuple[tuple[str, str, str], ...] = ()
    alphabet: Literal["text", "fallback", "level"] = "text"
    separator: bytes = b""
    strip: tuple[str, int] = ("", 0)

    def middle(self, token: str) -> bytes:
        """The bytes that a token adds anywhere but at the start of a text."""
        for old, new, _ in self.replacements:
            token = token.replace(old, new)
        return self.separator + self._spell(token)

    def first(self, token: str) -> bytes:
        """The bytes of a text's first token, before `without_prefix`."""
        for old, _, new in self.replacements:
            token = token.replace(old, new)
        return self._spell(token)

    def without_prefix(self, text: bytes) -> bytes:
        """A whole text without the prefix that its encoder had put there."""
        letter, count = self.strip
        prefix = letter.encode()
        while count and text.startswith(prefix):
            text, count = text[len(prefix) :], count - 1
        return text

    def _spell(self, token: str) -> bytes:
        if self.alphabet == "level":
            letters = byte_of_letter()
            # An added token may hold characters outside the alphabet; such a token is plain text as a whole.
            if all(letter in letters for letter in token):
                return bytes(letters[letter] for letter in token)
        elif self.alphabet == "fallback" and (single := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(single[1])
        return token.encode()


def decoding_rules(decoder: Mapping[str, Any] | None) -> DecodingRules:
    """The rules of a tokenizer file's `decoder` entry; without one, tokens are joined by spaces.

    Raises:
        Unsupported: the pipeline has a part whose effect depends on more than one token (WordPiece, CTC, ...).
    """
    if decoder is None:
        return DecodingRules(separator=b" ")
    rules, fused = DecodingRules(), False
    for part in _parts(decoder):
        match part:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if (
                old and not fused and rules.alphabet == "text"
            ):
                rules = replace(rules, replacements=(*rules.replacements, (old, new, new)))
            case {"type": "Metaspace", "replacement": str(old)} if not fused and rules.alphabet == "text":
                # Where the encoder puts a mark before the text, the decoder drops the marks of the first token.
                first = " " if part.get("prepend_scheme") == "never" else ""
                rules = replace(rules, replacements=(*rules.replacements, (old, " ", first)))
            case {"type": "ByteFallback"} if not fused and rules.alphabet == "text":
                rules = replace(rules, alphabet="fallback")
            case {"type": "ByteLevel"} if not fused and rules.alphabet == "text":
                rules, fused = replace(rules, alphabet="level"), True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": str(letter), "start": int(count), "stop": 0} if (
                fused and not rules.strip[1]
            ):
                rules = replace(rules, strip=(letter, count))
            case _:
                raise Unsupported(f"the tokenizer decoder {part.get('type')!r}", f"no rule per token for {dict(part)}")
    return rules


def _parts(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder.get("type") == "Sequence":
        for part in decoder["decoders"]:
            yield from _parts(part)
    else:
        yield decoder
