"""Drafts from the client's predicted output (OpenAI's `prediction`), followed through changes.

The client counts accepted prediction tokens with the same `PredictionFollower` as the engine drafts with.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from ferrum.scheduler.sequence import Sequence
from ferrum.speculative.ngram import SIZES
from ferrum.speculative.proposer import Draft

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NEAR: Final = 64
"""Tokens after a change within which the output is expected to return to the prediction."""

KIND: Final = "prediction"


class PredictedText:
    """A prediction, shared by all choices of a request.

    Attributes:
        text: its tokens.
    """

    def __init__(self, text: tuple[int, ...]) -> None:
        self.text = text

    @cached_property
    def _tokens(self) -> npt.NDArray[np.int64]:
        import numpy as np  # slow to import, and few clients use predictions

        return np.array(self.text, np.int64)

    def find_end(self, suffix: tuple[int, ...]) -> int | None:
        """Return the end of the last match of the longest n-gram at the end of `suffix`.

        A scan of 128,000 tokens takes 0.2 ms. Building an index would delay the batch by 128 ms.
        """
        import numpy as np

        found, reached = None, 0
        ends = np.ones(len(self.text) + 1, np.bool_)  # where the last `reached` tokens of `suffix` end
        for size in sorted(SIZES):
            if size > min(len(suffix), len(self.text)):
                break
            ends[:size] = False
            for back in range(reached + 1, size + 1):
                ends[size:] &= self._tokens[size - back : len(self.text) + 1 - back] == suffix[-back]
            if not ends.any():
                break
            found, reached = len(self.text) - int(ends[::-1].argmax()), size
        return found


class PredictionFollower:
    """The position of an output in its prediction; it depends on these two texts alone.

    After a token that was not predicted, the last tokens are searched in the prediction: nearby first, then anywhere.

    Attributes:
        fed: output tokens so far.
        accepted: output tokens that were predicted.
    """

    def __init__(self, prediction: PredictedText) -> None:
        self._prediction = prediction
        self._text = prediction.text
        self._suffix: tuple[int, ...] = ()
        self._at: int | None = 0
        self._lost = 0
        self.fed = 0
        self.accepted = 0

    def feed(self, tokens: Iterable[int]) -> None:
        """Follow the next output tokens."""
        for token in tokens:
            self.fed += 1
            self._suffix = (*self._suffix[1 - max(SIZES) :], token)
            if self._at is not None and self._text[self._at : self._at + 1] == (token,):
                self._at += 1
                self.accepted += 1
            else:
                self._lost = self._lost if self._at is None else self._at
                self._at = self._find()

    def following(self, max_tokens: int) -> tuple[int, ...]:
        """Return the next predicted tokens, at most `max_tokens`."""
        return () if self._at is None else self._text[self._at : self._at + max_tokens]

    def _find(self) -> int | None:
        """Return where the prediction continues after the last output tokens."""
        pair = self._suffix[-min(SIZES) :]
        for stop in range(self._lost + 1, min(self._lost + NEAR, len(self._text)) + 1):
            if len(pair) == min(SIZES) and self._text[max(0, stop - len(pair)) : stop] == pair:
                return stop
        return self._prediction.find_end(self._suffix)


class PredictionProposer:
    """Proposes the next tokens of the request's prediction."""

    only_predicted = True

    def __init__(self) -> None:
        self._followers: dict[str, PredictionFollower] = {}
        self._predictions: WeakValueDictionary[str, PredictedText] = (
            WeakValueDictionary()
        )  # freed with the last follower

    def propose(self, sequence: Sequence, max_tokens: int) -> Draft | None:
        request = sequence.request
        if not request.prediction:
            return None
        if sequence.cache_id not in self._followers:
            prediction = self._predictions.setdefault(request.request_id, PredictedText(request.prediction))
            self._followers[sequence.cache_id] = PredictionFollower(prediction)
        follower = self._followers[sequence.cache_id]
        follower.feed(sequence.tokens[len(request.prompt) + follower.fed :])
        tokens = follower.following(max_tokens)
        return Draft(tokens, KIND) if tokens else None

    def forget(self, sequence: Sequence) -> None:
        self._followers.pop(sequence.cache_id, None)
