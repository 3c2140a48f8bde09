"""A row of logits that rules edit, and their inputs: `Row` and `EditableLogits`. The rules are in `rules.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NoReturn, ParamSpec, TypeVar
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from ferrum.core.params import SamplingParams
from ferrum.core.step import Sampling
from ferrum.sampling.probabilities import F32, Int64

# ---- Token counts of growing sequences, and a cache of values per owner ----

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


NEVER: Final = np.float32(-np.inf)
"""The logit of a forbidden token."""


class _Undeclared(Sequence[int]):
    """Tokens that a rule may not read; it may count them if `length` is given."""

    def __init__(self, length: int | None = None) -> None:
        self._length = length

    def __len__(self) -> int:
        return self[0] if self._length is None else self._length

    def __getitem__(self, index: Any) -> NoReturn:
        reason = "a sampling rule reads tokens, but no parameter of the rule says reads=HISTORY"
        raise RuntimeError(f"{reason} (add it to the parameter in core/params.py)")


_UNDECLARED: Final = _Undeclared()
_without_history: Final = OwnerCache[Sampling]()


@dataclass(frozen=True, slots=True)
class Row:
    """The inputs of the rules for a row.

    Attributes:
        sampling: of the sequence.
        drafts: the tokens before the row that the history does not hold, or not yet.
        mask: see `Span.masks`.
        start: position of the first of `drafts`; None: the end of the history.
    """

    sampling: Sampling
    drafts: Sequence[int] = ()
    mask: bytes | None = None
    start: int | None = None

    @property
    def params(self) -> SamplingParams:
        """Parameters of the request."""
        return self.sampling.params

    @property
    def position(self) -> int:
        """Absolute position of the token to sample."""
        return self.known + len(self.drafts)

    @property
    def known(self) -> int:
        """Number of tokens before the row that come from the history."""
        return len(self.sampling.history) if self.start is None else self.start

    @property
    def generated(self) -> int:
        """Number of tokens generated before the row."""
        return self.position - self.sampling.prompt_length

    def without_tokens(self) -> Row:
        """Return the row for rules that do not say that they read tokens: reading one raises."""
        sampling = _without_history(self.sampling, replace, self.sampling, history=_UNDECLARED)
        return Row(sampling, _Undeclared(len(self.drafts)), self.mask, self.known)

    def tokens(self, start: int = 0) -> list[int]:
        """Return the tokens before the row, from position `start` on."""
        known = self.known
        return [*self.sampling.history[start:known], *self.drafts[max(0, start - known) :]]


class EditableLogits:
    """A row of logits f32 [V], copied before the first change, because most requests change nothing."""

    def __init__(self, logits: F32) -> None:
        self.logits = logits
        self.size = logits.size
        self._copied = False

    def __call__(self) -> F32:
        """Return the row for changes in place."""
        if not self._copied:
            self.logits, self._copied = self.logits.copy(), True
        return self.logits

    def keep(self, allowed: NDArray[np.int8]) -> None:
        """Forbid all tokens but those with a 1, by whole words: a choice per token takes ten times as long."""
        kept = self.logits.view(np.int32) ^ NEVER.view(np.int32)
        kept &= np.negative(allowed).astype(np.int32)  # all bits of a 1, none of a 0
        kept ^= NEVER.view(np.int32)
        self.logits, self._copied = kept.view(np.float32), True
