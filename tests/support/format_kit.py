"""Toys for tests of output formats: tokenizers of bytes and markers, and outputs pushed through a parser."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence

from ferrum.core.output_format import OutputFormat, Reading, Tool
from ferrum.formats.output_parser import OutputParser
from ferrum.formats.output_parts import Message, Part, joined_parts, message_of
from ferrum.formats.patterns import format_texts
from ferrum.text.tokenizer import Tokenizer

_PIECES = re.compile(r"<[^<>\n]{1,60}>|\[[A-Z_/]+\]|[^\w\s]DSML[^\w\s]")


def marker_texts(form: OutputFormat) -> tuple[str, ...]:
    """Return the parts of a format's texts that vocabularies have as tokens."""
    found: dict[str, None] = {}
    for text in format_texts(form):
        for piece in _PIECES.findall(text):
            found.update(dict.fromkeys(_PIECES.findall(piece[1:]) if "DSML" in piece[1:] else [piece]))
    return tuple(found)


class ToyTokenizer(Tokenizer):
    """A token for each byte, an end token, and markers."""

    def __init__(self, markers: Iterable[str] = (), *, special: bool = True) -> None:
        self.markers = tuple(markers)
        self.ids = {text: 257 + index for index, text in enumerate(self.markers)}
        self._special = frozenset({256, *(self.ids.values() if special else ())})
        self._split = re.compile(
            "|".join(re.escape(each) for each in sorted(self.markers, key=len, reverse=True)) or "(?!)"
        )

    @property
    def vocab_size(self) -> int:
        return 257 + len(self.markers)

    @property
    def bos_token_id(self) -> int | None:
        return None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (256,)

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special

    @property
    def added_ids(self) -> frozenset[int]:
        return frozenset(self.ids.values())

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        at = 0
        for found in self._split.finditer(text):
            ids += [*text[at : found.start()].encode(), self.ids[found.group()]]
            at = found.end()
        return ids + list(text[at:].encode())

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        kept = (each for each in ids if not (skip_special_tokens and each in self._special))
        return b"".join(self.token_bytes(each) for each in kept).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return b"" if token_id == 256 else self.markers[token_id - 257].encode()

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def piece(self, token_id: int) -> str | None:
        return self.token_text(token_id)


Pushes = Sequence[tuple[int, bytes]]


def pushes_of(text: str | bytes, tokenizer: ToyTokenizer) -> list[tuple[int, bytes]]:
    """Return an output's tokens with their bytes, one byte or marker each."""
    ids = tokenizer.encode(text) if isinstance(text, str) else list(text)
    return [(each, tokenizer.token_bytes(each)) for each in ids]


def cut_pushes(text: str, tokenizer: ToyTokenizer, chance: random.Random) -> list[tuple[int, bytes]]:
    """Return an output's tokens with bytes in random pieces; markers stay whole."""
    found: list[tuple[int, bytes]] = []
    size = 0
    for token, data in pushes_of(text, tokenizer):
        if token < 256 and size > 0:
            found[-1] = (found[-1][0], found[-1][1] + data)
        else:
            found.append((token, data))
            size = chance.choice((1, 1, 2, 3, 7, 30)) if token < 256 else 0
        size -= 1
    return found


def parts_of(pushes: Pushes, reading: Reading, tokenizer: Tokenizer, *, cut: bool = False) -> tuple[Part, ...]:
    """Return the joined parts of an output, which its limit has `cut` or not."""
    parser = OutputParser(reading, tokenizer)
    parts = [part for token, data in pushes for part in parser.push(token, data)]
    return joined_parts([*parts, *parser.finish(cut=cut)])


def parsed(
    text: str | bytes,
    form: OutputFormat,
    tools: tuple[Tool, ...],
    tokenizer: ToyTokenizer | None = None,
    *,
    opened: bool = False,
    reasoning: bool = True,
) -> Message:
    """Return the message that an output is read as."""
    toy = ToyTokenizer(marker_texts(form)) if tokenizer is None else tokenizer
    reading = Reading(format=form, tools=tools, opened=opened, reasoning=reasoning)
    return message_of(parts_of(pushes_of(text, toy), reading, toy))
