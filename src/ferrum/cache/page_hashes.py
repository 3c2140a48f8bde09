"""The pages of one layer group by the names of their content: what makes a page worth keeping when nobody owns it.

A name says what every token up to the page's end is (`cache.prefix`), so two pages of one name hold the same bits. A
page is named when it has become full, and found under its name once the sequence that wrote it has proven sound.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Name: TypeAlias = bytes
"""A digest of everything that the keys and values of a page depend on."""


@dataclass(frozen=True, slots=True, eq=False)
class NamedPage:
    """A page under a name, for as long as it keeps it. Compared by identity: both may be used again.

    Attributes:
        partial: it is not full (`cache.tails`), and not worth a copy when it has to make room.
    """

    page: int
    name: Name
    partial: bool = False


class PageNames:
    """Which page has which name, and which of them lie idle, longest first. All O(1) per page.

    Attributes:
        evicted: how many pages have lost their name for want of room.
        on_evict: told of a page that can be found before it loses its name, while it still is what it is called.
    """

    def __init__(self) -> None:
        self.evicted = 0
        self.on_evict: Callable[[NamedPage], None] | None = None
        self._named: dict[int, NamedPage] = {}
        self._proven: dict[Name, NamedPage] = {}
        # Not a plain dict: finding the first key of one that is emptied from the front is not O(1).
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._named)

    def __contains__(self, page: int) -> bool:
        return page in self._named

    @property
    def idle(self) -> int:
        """Number of named pages that nobody owns."""
        return len(self._idle)

    def find(self, name: Name) -> int | None:
        """The page of that name, if there is one and it is proven."""
        named = self._proven.get(name)
        return None if named is None else named.page

    def find_run(self, names: Sequence[Name]) -> int:
        """How many of the first names there are proven pages of."""
        return next((count for count, name in enumerate(names) if name not in self._proven), len(names))

    def give(self, page: int, name: Name, *, partial: bool = False) -> NamedPage | None:
        """Name a page, yet unproven; None where it has a name already."""
        if page in self._named:
            return None
        named = self._named[page] = NamedPage(page, name, partial)
        return named

    def prove(self, named: NamedPage) -> bool:
        """Let a page be found. False where it is not to keep its name: another page has proven it before."""
        if self._named.get(named.page) is not named:
            return True  # evicted meanwhile
        return self._proven.setdefault(named.name, named) is named

    def holds(self, named: NamedPage) -> bool:
        """Whether the page still has the name: as long as it has, nobody writes to it."""
        return self._named.get(named.page) is named

    def forget(self, named: NamedPage) -> bool:
        """Take the name away, where the page still has it; whether the page was idle, and is now the caller's."""
        if self._named.get(named.page) is not named:
            return False
        del self._named[named.page]
        if self._proven.get(named.name) is named:
            del self._proven[named.name]
        was_idle = named.page in self._idle
        self._idle.pop(named.page, None)
        return was_idle

    def retire(self, page: int) -> bool:
        """The page has lost its last owner: keep it, as the one used last, if it has a name."""
        if page not in self._named:
            return False
        self._idle[page] = None
        return True

    def revive(self, page: int) -> None:
        """The page has an owner again."""
        self._idle.pop(page, None)

    def evict(self) -> int:
        """Take the name and the place of the page that has been idle longest. There must be one."""
        page = next(iter(self._idle))
        named = self._named[page]
        if self.on_evict is not None and not named.partial and self._proven.get(named.name) is named:
            self.on_evict(named)
        self.forget(named)
        self.evicted += 1
        return page

    def clear(self) -> None:
        """Forget every name."""
        for table in (self._named, self._proven, self._idle):
            table.clear()

    def check(self, unowned: set[int]) -> None:
        """Assert that the books agree, with `unowned` the pages without owner that no copy reads."""
        assert set(self._idle) == unowned & set(self._named), "the idle pages differ from the named ones without owner"
        for page, named in self._named.items():
            assert named.page == page, "a page is listed under another one"
        for name, named in self._proven.items():
            assert named.name == name and self._named.get(named.page) is named, "a name leads to a page without it"
