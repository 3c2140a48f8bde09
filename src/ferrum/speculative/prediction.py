"""The client's own guess of the whole output (OpenAI's `prediction`), followed for as long as the output agrees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ferrum.core.types import Sequence
from ferrum.speculative.ngram import SIZES, NGramIndex
from ferrum.speculative.proposer import Guess

NEAR: Final = 64
"""How far behind the place of a change the output is expected to take up the prediction again."""

KIND: Final = "prediction"


class Follower:
    """Where an output stands in its prediction. What it comes to depends on these two alone.

    After a token that was not predicted, the output is looked for in the prediction by its last tokens: nearby first,
    then by n-grams anywhere.

    Attributes:
        fed: output tokens so far.
        accepted: those of them that were the predicted ones.
    """

    def __init__(self, prediction: tuple[int, ...]) -> None:
        self._text = prediction
        self._index = NGramIndex()
        self._index.extend(prediction, len(prediction))
        self._tail: tuple[int, ...] = ()
        self._at: int | None = 0
        self._lost = 0
        self.fed = 0
        self.accepted = 0

    def feed(self, tokens: Iterable[int]) -> None:
        """Go on with the next output tokens."""
        for token in tokens:
            self.fed += 1
            self._tail = (*self._tail[1 - max(SIZES) :], token)
            if self._at is not None and self._text[self._at : self._at + 1] == (token,):
                self._at += 1
                self.accepted += 1
            else:
                self._lost = self._lost if self._at is None else self._at
                self._at = self._place()

    def following(self, most: int) -> tuple[int, ...]:
        """At most so many predicted tokens from here on."""
        return () if self._at is None else self._text[self._at : self._at + most]

    def _place(self) -> int | None:
        """Where the prediction has the last tokens of the output."""
        pair = self._tail[-min(SIZES) :]
        for stop in range(self._lost + 1, min(self._lost + NEAR, len(self._text)) + 1):
            if len(pair) == min(SIZES) and self._text[max(0, stop - len(pair)) : stop] == pair:
                return stop
        found = self._index.find(self._tail)
        return None if found is None else found[0]


class PredictionProposer:
    """Guesses what the request's own prediction says."""

    def __init__(self) -> None:
        self._followers: dict[str, Follower] = {}

    def look(self, sequence: Sequence, most: int) -> Guess | None:
        """See `Proposer`."""
        if not sequence.request.prediction:
            return None
        if sequence.cache_id not in self._followers:
            self._followers[sequence.cache_id] = Follower(sequence.request.prediction)
        follower = self._followers[sequence.cache_id]
        follower.feed(sequence.tokens[len(sequence.request.prompt) + follower.fed :])
        tokens = follower.following(most)
        return Guess(tokens, KIND) if tokens else None

    def forget(self, sequence: Sequence) -> None:
        """See `Proposer`."""
        self._followers.pop(sequence.cache_id, None)
