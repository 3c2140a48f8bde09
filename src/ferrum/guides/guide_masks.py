"""`GuideMasks`: masks that another thread computes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import TypeAlias, overload

from ferrum.core.errors import StepError
from ferrum.core.step import PendingMasks

Outcome: TypeAlias = bytes | StepError | None
"""A mask, None for one that allows all tokens, or the reason why there is none."""


class GuideMasks(PendingMasks):
    """The masks of a span.

    Args:
        first: of the row after the newest token.
        later: of the rows after the draft tokens, or None without drafts.
        rows: which of all of them.
    """

    def __init__(self, first: Future[Outcome], later: Future[list[Outcome]] | None, rows: range) -> None:
        self._first, self._later, self._rows = first, later, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> bytes | None: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes | None]: ...

    def __getitem__(self, place: int | slice) -> bytes | Sequence[bytes | None] | None:
        if isinstance(place, slice):
            return GuideMasks(self._first, self._later, self._rows[place])
        row = self._rows[place]
        try:
            if not row:
                found = self._first.result()
            else:
                assert self._later is not None
                found = self._later.result()[row - 1]
        except CancelledError:
            raise StepError("the engine has ended") from None
        if isinstance(found, StepError):
            raise type(found)(*found.args)  # each reader has its own traceback
        return found
