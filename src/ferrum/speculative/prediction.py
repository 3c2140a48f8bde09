"""The client's own guess of the whole output (OpenAI's `prediction`), followed for as long as the output agrees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from weakref import WeakValueDictionary

from ferrum.core.types import Sequence
from ferrum.speculative.ngram import SIZES, NGramIndex
from ferrum.speculative.proposer import Guess

NEAR: Final = 64
"""How far behind the place of a change the output is expected to take up the prediction again."""

KIND: Final = "prediction"


class Predicted:
    """A prediction, for all choices of a request: an index of its n-grams takes thirty times what it takes itself.

    Attributes:
        text: its tokens.
    """

    def __init__(self, text: tuple[int, ...]) -> None:
        self.text = text
        self._index: NGramIndex | None = None

    @property
    def index(self) -> NGramIndex:
        """Where its n-grams stand; made when the first output leaves it."""
        if self._index is None:
            self._index = NGramIndex()
            self._index.extend(self.text, len(self.text))
        return self._index


class Follower:
    """Where an output stands in its prediction. What it comes to depends on these two alone.

    After a token that was not predicted, the output is looked for in the prediction by its last tokens: nearby first,
    then by n-grams anywhere.

    Attributes:
        fed: output tokens so far.
        accepted: those of them that were the predicted ones.
    """

    def __init__(self, prediction: Predicted) -> None:
        self._prediction = prediction
        self._text = prediction.text
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
        found = self._prediction.index.find(self._tail)
        return None if found is None else found[0]


class PredictionProposer:
    """Guesses what the request's own prediction says."""

    def __init__(self) -> None:
        self._followers: dict[str, Follower] = {}
        self._predictions: WeakValueDictionary[str, Predicted] = WeakValueDictionary()  # gone with the last follower

    def knows(self, sequence: Sequence) -> bool:
        """See `Proposer`."""
        return bool(sequence.request.prediction)

    def look(self, sequence: Sequence, most: int) -> Guess | None:
        """See `Proposer`."""
        request = sequence.request
        if not request.prediction:
            return None
        if sequence.cache_id not in self._followers:
            prediction = self._predictions.setdefault(request.request_id, Predicted(request.prediction))
            self._followers[sequence.cache_id] = Follower(prediction)
        follower = self._followers[sequence.cache_id]
        follower.feed(sequence.tokens[len(request.prompt) + follower.fed :])
        tokens = follower.following(most)
        return Guess(tokens, KIND) if tokens else None

    def forget(self, sequence: Sequence) -> None:
        """See `Proposer`."""
        self._followers.pop(sequence.cache_id, None)
