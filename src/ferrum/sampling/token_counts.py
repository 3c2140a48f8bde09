"""What rules make of a request or of a sequence once, and not anew at every token: kept for as long as that lives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, ParamSpec, TypeVar
from weakref import finalize

import numpy as np

from ferrum.sampling.probability_mass import F32, Int64

Thing = TypeVar("Thing")
Given = ParamSpec("Given")


class Keeper(Generic[Thing]):
    """Makes a thing for every owner when first asked, and gives the same one from then on. Equal owners are not one."""

    def __init__(self) -> None:
        self._things: dict[int, Thing] = {}

    def __call__(self, owner: object, make: Callable[Given, Thing], *args: Given.args, **kwargs: Given.kwargs) -> Thing:
        """The owner's thing, else what `make` makes of the arguments, which do not hold the owner."""
        key = id(owner)
        if key not in self._things:
            self._things[key] = make(*args, **kwargs)
            finalize(owner, self._things.pop, key, None).atexit = False
        return self._things[key]

    def kept(self, owner: object) -> Thing | None:
        """The owner's thing, where there is one."""
        return self._things.get(id(owner))


class Counts:
    """How often each token stands in a sequence from `start` on. As it grows, only what is new is counted.

    Args:
        history: the sequence, which is appended to, and cut where `take_back` has been told so.
    """

    def __init__(self, history: Sequence[int], start: int) -> None:
        self._history, self._start, self._end = history, start, start
        self._counts: Counter[int] = Counter()

    def __call__(self, drafts: Sequence[int] = ()) -> tuple[Int64, F32]:
        """Each token once, in any order, and how often it stands there or among the drafts that follow."""
        self._counts.update(self._history[self._end :])
        self._end = max(self._end, len(self._history))
        counts = self._counts
        if drafts:
            counts = counts.copy()
            counts.update(drafts)
        return np.fromiter(counts, np.int64, len(counts)), np.fromiter(counts.values(), np.float32, len(counts))

    def take_back(self, length: int) -> None:
        """Count no more what stands from `length` on, where the sequence is about to be cut."""
        length = max(length, self._start)
        for token in self._history[length : self._end]:
            self._counts[token] -= 1
            if not self._counts[token]:
                del self._counts[token]
        self._end = min(self._end, length)
