"""Token ids to text as they arrive: whole characters only, cut at the first stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ferrum.core.errors import RequestError
from ferrum.text.stop_strings import StopStrings, stop_strings
from ferrum.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Delta:
    """What pushed tokens brought.

    Attributes:
        text: the text that is now certain; it may lag behind the tokens.
        kept: how many of the pushed tokens belong to the output: all, up to the one that completes a stop string.
        stop: the stop string that ended the text, or None.
    """

    text: str
    kept: int
    stop: str | None = None


class Detokenizer:
    """The text of one generated sequence.

    The deltas and `finish()` concatenate to the generated tokens' bytes decoded as one string, with U+FFFD only where
    the whole has an invalid sequence, however the tokens are grouped into pushes. A token costs O(1) amortised in the
    characters it adds.

    Generated text is the middle of a text, its prompt's: it is `decode(prompt + output)` less `decode(prompt)` for a
    prompt that decodes to something. The space that SentencePiece-like decoders take off the front of a text is the
    prompt's and not ours: after a prompt without any text (begin token only) the output keeps its leading space.

    Stop strings: the one whose last character comes first ends the text; of several that end at the same character the
    longest. So the cut depends on the characters alone and not on where tokens border. Text is held back only while it
    may still become a stop string.

    Args:
        stop: strings that end the text.
        include_stop: keep the stop string at the end of the text.
        min_tokens: no stop string ends the text with one of so many first tokens.
        skip_special_tokens: control tokens add no text.

    Raises:
        RequestError: a stop string is empty, or `stop` is a bare string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        if isinstance(stop, str) or not all(stop):
            raise RequestError("must be a list of strings that are not empty", param="stop")
        self._tokenizer = tokenizer
        self._include_stop = include_stop
        self._spared = min_tokens
        self._skip_special = skip_special_tokens
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = stop_strings(stop) if stop else None
        self._state = 0
        self._held = ""
        self._ended = False

    def push(self, token_ids: Iterable[int]) -> Delta:
        """Take the next tokens. Once a stop string is complete, nothing more is kept.

        Raises:
            InvalidToken: an id is negative or not an integer.
        """
        pushed = () if self._ended else tuple(token_ids)
        if self._stops is None:
            return Delta(self._characters.decode(b"".join([self._bytes(each) for each in pushed])), len(pushed))
        certain = []
        for kept, token_id in enumerate(pushed, 1):
            self._spared -= 1
            text, stop = self._scan(self._stops, self._characters.decode(self._bytes(token_id)))
            certain.append(text)
            if stop is not None:
                self._ended = True
                return Delta("".join(certain), kept, stop)
        return Delta("".join(certain), len(pushed))

    def finish(self) -> str:
        """The text still held back; bytes of an incomplete character become U+FFFD, which completes no stop string."""
        if self._ended:
            return ""
        self._ended = True
        return self._held + self._characters.decode(b"", final=True)

    def _bytes(self, token_id: int) -> bytes:
        if self._skip_special and self._tokenizer.is_special(token_id):
            return b""
        return self._tokenizer.token_bytes(token_id)

    def _scan(self, stops: StopStrings, text: str) -> tuple[str, str | None]:
        """Split new text into what is certain now and what is held, or end at a stop string."""
        seen = self._held + text
        state = self._state
        for place, letter in enumerate(text, len(self._held) + 1):
            state = stops.advance(state, letter)
            if self._spared < 0 and (stop := stops.match(state)) is not None:
                return seen[: place if self._include_stop else place - len(stop)], stop
        self._state = state
        certain = len(seen) - stops.pending(state)
        self._held = seen[certain:]
        return seen[:certain], None
