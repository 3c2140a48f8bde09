"""Decoding rules: the bytes that each vocabulary entry adds to a text.

A tokenizer file describes its decoder as a pipeline over token strings. Incremental decoding needs one rule per token,
so the pipeline is reduced to `DecodingRules`: a text is the concatenation of its tokens' bytes.
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
    """Return the byte of each letter of a byte-level vocabulary: 256 entries.

    Printable Latin-1 characters stand for themselves. The other bytes map, in ascending order, to the characters from
    U+0100: the alphabet of GPT-2's byte-level BPE (Radford et al., 2019, section 2.2, and its published encoder).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}


@dataclass(frozen=True, slots=True)
class DecodingRules:
    """A decoder pipeline as a rule per token.

    Attributes:
        replacements: (old, new, new in the first token of a text), applied to the token string in order.
        alphabet: the meaning of the letters: `text`, `fallback` (text, with `<0xAB>` for a byte) or `level` (bytes).
        separator: precedes every token except the first.
        strip: a character removed from the start of a whole text, and how many times at most.
    """

    replacements: tuple[tuple[str, str, str], ...] = ()
    alphabet: Literal["text", "fallback", "level"] = "text"
    separator: bytes = b""
    strip: tuple[str, int] = ("", 0)

    def middle(self, token: str) -> bytes:
        """Return the bytes that a token adds after the first token."""
        for old, new, _ in self.replacements:
            token = token.replace(old, new)
        return self.separator + self._spell(token)

    def first(self, token: str) -> bytes:
        """Return the bytes of the first token, before `without_prefix`."""
        for old, _, new in self.replacements:
            token = token.replace(old, new)
        return self._spell(token)

    def without_prefix(self, text: bytes) -> bytes:
        """Return a whole text without the prefix that its encoder added."""
        letter, count = self.strip
        prefix = letter.encode()
        while count and text.startswith(prefix):
            text, count = text[len(prefix) :], count - 1
        return text

    def _spell(self, token: str) -> bytes:
        if self.alphabet == "level":
            letters = byte_of_letter()
            # An added token with characters outside the alphabet is plain text.
            if all(letter in letters for letter in token):
                return bytes(letters[letter] for letter in token)
        elif self.alphabet == "fallback" and (single := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(single[1])
        return token.encode()


def decoding_rules(decoder: Mapping[str, Any] | None) -> DecodingRules:
    """Return the rules of a tokenizer file's `decoder`; without one, tokens are joined by spaces.

    Raises:
        Unsupported: a part of the pipeline depends on more than one token (WordPiece, CTC, ...).
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
                # If the encoder puts a mark before the text, the decoder drops the marks of the first token.
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
