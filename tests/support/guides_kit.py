"""A guide without limits, whose rest a test decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from ferrum.core.step import PendingMasks
from ferrum.scheduler.guides import UNLIMITED


class AllAllowed(PendingMasks):
    """Masks that allow everything."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> bytes | None: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[bytes | None]: ...

    def __getitem__(self, place: int | slice) -> bytes | Sequence[bytes | None] | None:
        return None if isinstance(place, int) else AllAllowed(len(range(self._count)[place]))


@dataclass
class OpenGuide:
    """A guide that allows everything; see `Guide` for its attributes."""

    unconstrained: bool = False
    trigger_tokens: frozenset[int] = frozenset()
    unconstrained_until: int = UNLIMITED
    taken: int = 0
    closed: bool = False

    def advance(self, tokens: tuple[int, ...]) -> None:
        self.taken += len(tokens)

    def masks(self, drafts: tuple[int, ...]) -> PendingMasks:
        return AllAllowed(1 + len(drafts))

    def forced(self, limit: int) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        assert not self.closed
        self.closed = True
