"""The client's own guess of the whole output (OpenAI's `prediction`), followed for as long as the output agrees."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from ferrum.core.types import Sequence
from ferrum.speculative.ngram import SIZES
from ferrum.speculative.proposer import Guess

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NEAR: Final = 64
"""How far behind the place of a change the output is expected to take up the prediction again."""

KIND: Final = "prediction"


class Predicted:
    """A prediction, for all choices of a request.

    Attributes:
        text: its tokens.
    """

    def __init__(self, text: tuple[int, ...]) -> None:
        self.text = text

    @cached_property
    def _tokens(self) -> npt.NDArray[np.int64]:
        import numpy as np  # clients follow predictions, too, and few are given one

        return np.array(self.text, np.int64)

    def place_after(self, tail: tuple[int, ...]) -> int | None:
        """The place after the last n-gram that `tail` ends with, of the longest kind that stands here.

        Looked for anew each time: of 128,000 tokens in 0.2 ms, where an index of them would take all sequences 128 ms.
        """
        import numpy as np

        found, reached = None, 0
        ends = np.ones(len(self.text) + 1, np.bool_)  # where the last `reached` tokens of `tail` end
        for size in sorted(SIZES):
            if size > min(len(tail), len(self.text)):
                break
            ends[:size] = False
            for back in range(reached + 1, size + 1):
                ends[size:] &= self._tokens[size - back : len(self.text) + 1 - back] == tail[-back]
            if not ends.any():
                break
            found, reached = len(self.text) - int(ends[::-1].argmax()), size
        return found


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
        return self._prediction.place_after(self._tail)


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
