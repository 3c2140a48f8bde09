"""Pages that are not full: who goes on where a sequence has ended takes a copy of its last page, and computes only what
is new.

The page has a name like a full one's, for the tokens that it holds. For whoever has the first few of them in common it
holds what is needed too. Nobody writes to it under that name: it is copied first (`PageRows.reserve`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from ferrum.cache.names import Name

MOST: Final = 16384
"""Ends of full pages behind which tails are remembered; the ones not asked for longest are forgotten."""


@dataclass(frozen=True, slots=True)
class Tail:
    """A page to begin with whose first tokens are those that are wanted.

    Attributes:
        name: what it is called.
        tokens: how many of its tokens are wanted.
    """

    name: Name
    tokens: int


@dataclass(slots=True)
class _Known:
    """The tails behind one full page: a bit for each length that there was, and the last one's name and tokens."""

    lengths: int = 0
    name: Name = b""
    tokens: tuple[int, ...] = ()


class Tails:
    """Which tails there may be, by the name of the full page before them."""

    def __init__(self) -> None:
        self._known: OrderedDict[Name, _Known] = OrderedDict()

    def add(self, before: Name, name: Name, tokens: Sequence[int]) -> None:
        """A page of that name holds these tokens behind the page `before`."""
        known = self._known.setdefault(before, _Known())
        known.lengths |= 1 << len(tokens)
        known.name, known.tokens = name, tuple(tokens)
        self._known.move_to_end(before)
        if len(self._known) > MOST:
            self._known.popitem(last=False)

    def find(
        self,
        before: Name,
        wanted: Sequence[int],
        called: Callable[[Sequence[int]], Name],
        is_there: Callable[[Name], bool],
    ) -> Tail | None:
        """The tail that holds most of the tokens that are wanted behind a page: one that they begin with, or the last.

        Args:
            called: names a tail by its tokens.
            is_there: whether there is a page of that name.
        """
        known = self._known.get(before)
        if known is None:
            return None
        self._known.move_to_end(before)
        alike = sum(1 for _ in takewhile(bool, map(int.__eq__, known.tokens, wanted)))
        common = alike if is_there(known.name) else 0
        for count in range(len(wanted), common, -1):
            if known.lengths >> count & 1 and is_there(name := called(wanted[:count])):
                return Tail(name, count)
        return Tail(known.name, common) if common else None
