"""What full pages are called, so that whoever needs the same tokens again finds their keys and values.

A page's name is a digest of the name of the page before it and of its own tokens; the chain begins with all else that
keys and values depend on, and with whose they are. Positions need no place of their own: they follow from the chain.

A page that is full is named at once, for it may leave a window soon, but is found only when its sequence is proven: by
logits that were finite. Until then it may hold a NaN that would spread to everyone who has the same prefix.

Pages that are not full: who goes on where a sequence has ended takes a copy of its last page, and computes only what
is new.

The page has a name like a full one's, for the tokens that it holds. For whoever has the first few of them in common it
holds what is needed too. Nobody writes to it under that name: it is copied first (`PageRows.reserve`).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from hashlib import sha256
from itertools import takewhile
from typing import Final

from ferrum.cache.layer_groups import PageGroup
from ferrum.cache.page_hashes import Name, NamedPage
from ferrum.cache.pool import PagePool


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixScope:
    """Within which equal tokens have equal keys and values.

    Attributes:
        model: which weights, by their content or, within one process, by where they were loaded from.
        weights: what was made of them: formats, and what else options change.
        kv_format: format of keys and values.
        page_size: tokens per page.
        numerics_id: of the kernels.
    """

    model: str
    weights: str
    kv_format: str
    page_size: int
    numerics_id: str

    def root(self, *, adapter: str | None, tenant: str, salt: str) -> Name:
        """The name that the first page's name is made from.

        Args:
            adapter: the adapter in use.
            tenant, salt: nobody with others finds these pages, or can tell from a delay that they are there.
        """
        fields = (*map(str, astuple(self)), "" if adapter is None else f"adapter {adapter}", tenant, salt)
        return sha256(b"".join(_framed(field.encode()) for field in fields)).digest()

    def extend(self, names: list[Name], root: Name, tokens: Sequence[int]) -> None:
        """Add the names of the full pages of `tokens` that are not in `names` yet."""
        size = self.page_size
        for page in range(len(names), len(tokens) // size):
            names.append(self.called(names[-1] if names else root, tokens[page * size : (page + 1) * size]))

    def called(self, before: Name, tokens: Sequence[int]) -> Name:
        """The name of a page with these tokens, a full one or not, behind the page `before` or the root."""
        return sha256(before + array("i", tokens).tobytes()).digest()


def _framed(field: bytes) -> bytes:
    """Bytes with their length, so that no two lists of fields run together into the same bytes."""
    return len(field).to_bytes(8, "little") + field


class SequenceNames:
    """How far the pages of one sequence are named and proven.

    Args:
        names: of its full pages, as far as its tokens are known: a view that its owner appends to.
        named: how many of its pages have their name already.
    """

    __slots__ = ("_named", "_names", "_unproven")

    def __init__(self, names: Sequence[Name] = (), named: int = 0) -> None:
        self._names = names
        self._named = named
        self._unproven: list[tuple[PagePool, NamedPage]] = []

    def give(self, pools: Sequence[PagePool], rows: Sequence[Sequence[int]], freed: Sequence[int], full: int) -> None:
        """Name the first `full` pages in every group's row, but for the leading `freed` ones, as far as known."""
        for index in range(self._named, min(full, len(self._names))):
            for pool, row, gone in zip(pools, rows, freed, strict=True):
                named = None if index < gone else pool.names.give(row[index], self._names[index])
                if named is not None:
                    self._unproven.append((pool, named))
            self._named = index + 1

    def cut(self, full: int) -> None:
        """Only the first `full` pages are left."""
        self._named = min(self._named, full)

    def prove(self) -> list[tuple[PagePool, NamedPage]]:
        """Let the named pages be found; those that now are."""
        if not self._unproven:
            return []
        proven = [(pool, named) for pool, named in self._unproven if pool.prove(named)]
        self._unproven.clear()
        return proven

    def forget(self) -> None:
        """Take the names that are not proven away."""
        for pool, named in self._unproven:
            pool.forget(named)
        self._unproven.clear()


def longest_match(groups: Sequence[PageGroup], pools: Sequence[PagePool], names: Sequence[Name]) -> int:
    """How many of the leading pages can be had: all of them in a group without a window, in the others as many as
    the next query sees.
    """
    if len(groups) == 1 and groups[0].window is None:  # as nearly always, and in a tenth of the time
        return pools[0].names.find_run(names)
    runs = [0] * len(groups)
    longest = 0
    for count, name in enumerate(names, 1):
        for index, (group, pool) in enumerate(zip(groups, pools, strict=True)):
            runs[index] = 0 if pool.names.find(name) is None else runs[index] + 1
            if runs[index] < count and group.window is None:
                return longest
        if all(run >= count - group.unseen(count * group.page_size) for run, group in zip(runs, groups, strict=True)):
            longest = count
    return longest


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
