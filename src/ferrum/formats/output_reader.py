"""`OutputReader`: the parts of one generated sequence, token by token, up to the first stop string in its content.

`Detokenizer` is its counterpart for outputs that are plain text. Parts are found by `OutputParser`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ferrum.core.output_format import Reading
from ferrum.formats.output_parser import OutputParser
from ferrum.formats.output_parts import Part, PartKind, joined_parts
from ferrum.text.stop_strings import StopScanner
from ferrum.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReadParts:
    """The effect of pushed tokens.

    Attributes:
        parts: those that are now final; they may lag behind the tokens.
        kept: number of pushed tokens in the output: all, or those up to the end of a stop string.
        stop: the stop string that ended the output, or None.
    """

    parts: tuple[Part, ...]
    kept: int
    stop: str | None = None

    @property
    def content(self) -> str:
        """The content among the parts."""
        return "".join([part.text for part in self.parts if part.kind is PartKind.CONTENT])


class OutputReader:
    """The parts of one generated sequence, independent of how tokens are grouped into pushes.

    Args:
        reading: how the output is read.
        tokenizer: gives the bytes of tokens, and the tokens of markers.
        stop: strings that end the output where they stand in the content. Reasoning and calls may contain them.
        include_stop: keep the stop string at the end of the content.
        min_tokens: stop strings are ignored in this many first tokens.
        skip_special_tokens: control tokens that are no markers add no text.

    Attributes:
        reasoning_tokens: kept tokens of reasoning, its markers included.
        num_calls: calls that have begun.
    """

    def __init__(
        self,
        reading: Reading,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        self.reasoning_tokens = self.num_calls = 0
        self._tokenizer = tokenizer
        self._parser = OutputParser(reading, tokenizer)
        self._stops = StopScanner(stop, include_stop=include_stop) if stop else None
        self._spared = min_tokens
        self._skip_special = skip_special_tokens
        self._ended = False

    def push(self, token_ids: Sequence[int], *, hide_last: bool = False) -> ReadParts:
        """Take the next tokens. After a complete stop string, none are kept.

        Args:
            token_ids: the tokens.
            hide_last: the last one adds no text, unless it is a marker.
        """
        found: list[Part] = []
        for kept, token_id in enumerate(() if self._ended else token_ids, 1):
            self._spared -= 1
            hidden = hide_last and kept == len(token_ids)
            stop = self._add(self._parser.push(token_id, b"" if hidden else self._bytes(token_id)), found)
            self.reasoning_tokens += self._parser.in_reasoning
            if stop is not None:
                self._ended = True
                return ReadParts(joined_parts(found), kept, stop)
        return ReadParts(joined_parts(found), 0 if self._ended else len(token_ids))

    def finish(self, *, cut: bool = False) -> tuple[Part, ...]:
        """Return the parts held back. What did not become a call is content, unless the output was `cut` in it."""
        found: list[Part] = []
        if not self._ended:
            self._ended = True
            stop = self._add(self._parser.finish(cut=cut), found)
            if self._stops is not None and stop is None:
                found.append(Part(PartKind.CONTENT, self._stops.finish()))
        return joined_parts(found)

    def _add(self, parts: Iterable[Part], found: list[Part]) -> str | None:
        """Append parts up to the first stop string in the content; return it."""
        for part in parts:
            self.num_calls += part.kind is PartKind.CALL
            if part.kind is not PartKind.CONTENT or self._stops is None:
                if self._stops is not None and part.kind is PartKind.CALL:
                    found.append(Part(PartKind.CONTENT, self._stops.finish()))
                found.append(part)
                continue
            text, stop = self._stops.push(part.text, spared=self._spared >= 0)
            found.append(Part(PartKind.CONTENT, text))
            if stop is not None:
                return stop
        return None

    def _bytes(self, token_id: int) -> bytes:
        if self._skip_special and self._tokenizer.is_special(token_id):
            return b""
        return self._tokenizer.token_bytes(token_id)
