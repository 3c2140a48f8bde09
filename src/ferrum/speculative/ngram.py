"""Drafts from the text so far: what followed the last few tokens at their previous place (prompt lookup).

Sources: Saxena, "Prompt Lookup Decoding", 2023; Yang et al., "Inference with Reference", 2023.
"""

from __future__ import annotations

from collections.abc import Sequence as Series
from typing import Final
from weakref import WeakValueDictionary

from ferrum.scheduler.sequence import Sequence
from ferrum.speculative.proposer import Draft

SIZES: Final = (5, 3, 2)
"""Lengths of the n-grams that are looked up, the longest first."""

INDEX_CHUNK: Final = 4096
"""Tokens that one lookup indexes at most, of the prompt and of the output.

The whole batch waits meanwhile: 5 ms for a chunk, 143 ms for a prompt of 128,000 tokens at once.
"""


class NGramIndex:
    """The last place of every n-gram of a growing text. Adding a token and a lookup take constant time.

    Keys are hashes: a collision costs one wrong draft, and storing n-grams would cost memory.

    Args:
        prefix: index of what the text begins with.
        indexed: how many of the first tokens `prefix` indexes.

    Attributes:
        indexed: how many of the first tokens are indexed, here or in `prefix`.
    """

    def __init__(self, prefix: NGramIndex | None = None, indexed: int = 0) -> None:
        self._ends: dict[int, dict[int, int]] = {size: {} for size in SIZES}
        self._prefix = prefix
        self.indexed = indexed

    def extend(self, text: Series[int], end: int) -> None:
        """Index the n-grams that end at or before `end`. The text up to there never changes again."""
        for stop in range(self.indexed + 1, end + 1):
            for size, ends in self._ends.items():
                if size <= stop:
                    ends[hash(tuple(text[stop - size : stop]))] = stop
        self.indexed = max(self.indexed, end)

    def find(self, text: Series[int]) -> tuple[int, int] | None:
        """Return the position after the previous place of the last tokens, and how many of them match."""
        for size in SIZES:
            if size <= len(text) and (stop := self._last(size, hash(tuple(text[len(text) - size :])))) is not None:
                return stop, size
        return None

    def _last(self, size: int, key: int) -> int | None:
        stop = self._ends[size].get(key)
        return self._prefix._last(size, key) if stop is None and self._prefix is not None else stop


class NGramProposer:
    """Proposes what followed the last tokens of a sequence before."""

    only_predicted = False

    def __init__(self) -> None:
        self._indexes: dict[str, tuple[NGramIndex, NGramIndex]] = {}  # of the prompt, and of the output
        # By request: its choices share the index of the prompt, which is freed with the last of them.
        self._prompts: WeakValueDictionary[str, NGramIndex] = WeakValueDictionary()

    def propose(self, sequence: Sequence, max_tokens: int) -> Draft | None:
        text = sequence.tokens
        prompt_index, index = self._indexes.get(sequence.cache_id) or self._begin(sequence)
        for part, tokens in ((prompt_index, sequence.request.prompt), (index, text)):
            # The last token has no continuation yet.
            part.extend(tokens, min(len(tokens) - 1, part.indexed + INDEX_CHUNK))
        found = index.find(text)
        if found is None:
            return None
        stop, size = found
        tokens = list(text[stop : stop + max_tokens])
        while len(tokens) < max_tokens:
            tokens.append(tokens[stop + len(tokens) - len(text)])  # past the end, the draft repeats itself
        return Draft(tuple(tokens), f"{size}-gram")

    def _begin(self, sequence: Sequence) -> tuple[NGramIndex, NGramIndex]:
        request = sequence.request
        prompt_index = self._prompts.setdefault(request.request_id, NGramIndex())
        indexes = self._indexes[sequence.cache_id] = prompt_index, NGramIndex(prompt_index, len(request.prompt) - 1)
        return indexes

    def forget(self, sequence: Sequence) -> None:
        self._indexes.pop(sequence.cache_id, None)
