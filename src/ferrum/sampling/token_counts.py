"""Token counts of growing sequences, and a cache of values per owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, ParamSpec, TypeVar
from weakref import finalize

import numpy as np

from ferrum.sampling.probability_mass import F32, Int64

Value = TypeVar("Value")
Given = ParamSpec("Given")


class OwnerCache(Generic[Value]):
    """A cache of one value per owner, freed with the owner. Owners are compared by identity."""

    def __init__(self) -> None:
        self._values: dict[int, Value] = {}

    def __call__(self, owner: object, make: Callable[Given, Value], *args: Given.args, **kwargs: Given.kwargs) -> Value:
        """Return the owner's value. Make it on the first call, from arguments that must not refer to the owner."""
        key = id(owner)
        if key not in self._values:
            self._values[key] = make(*args, **kwargs)
            finalize(owner, self._values.pop, key, None).atexit = False
        return self._values[key]

    def get(self, owner: object) -> Value | None:
        """Return the owner's value, or None."""
        return self._values.get(id(owner))


class TokenCounts:
    """Count of each token in a sequence from `start` on. A call counts only the tokens added since the last call.

    Args:
        history: the sequence. It may grow; call `truncate` before cutting it.
        start: first position that counts.
    """

    def __init__(self, history: Sequence[int], start: int) -> None:
        self._history, self._start, self._end = history, start, start
        self._counts: Counter[int] = Counter()

    def __call__(self, length: int, drafts: Sequence[int] = ()) -> tuple[Int64, F32]:
        """Return the distinct tokens among the first `length` and the draft tokens, and how often each occurs."""
        self._counts.update(self._history[self._end : length])
        self._end = max(self._end, length)
        counts = self._counts
        if drafts:
            counts = counts.copy()
            counts.update(drafts)
        return np.fromiter(counts, np.int64, len(counts)), np.fromiter(counts.values(), np.float32, len(counts))

    def truncate(self, length: int) -> None:
        """Remove the tokens from position `length` on from the counts. Call before cutting the sequence."""
        length = max(length, self._start)
        for token in self._history[length : self._end]:
            self._counts[token] -= 1
            if not self._counts[token]:
                del self._counts[token]
        self._end = min(self._end, length)
