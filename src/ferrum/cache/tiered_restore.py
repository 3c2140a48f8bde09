"""Pages that come back into the pool from outside, while others compute.

Whoever wants them waits; the engine's loop does not. Until they are there they belong to a sequence of their own, so
that nobody else takes them; then they get their names, and whoever looks for them finds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ferrum.cache.page_hashes import Name, NamedPage

if TYPE_CHECKING:
    from ferrum.cache.page_table import PageTable


@dataclass(frozen=True, slots=True)
class Wanted:
    """A page to be written from its copy.

    Attributes:
        group, page: where it is to be.
        name: what it is called.
        needed: without it those that follow it are of no use.
    """

    group: str
    page: int
    name: Name
    needed: bool


class PageKeeper(Protocol):
    """Keeps copies of proven pages where they outlast the pool."""

    def keep(self, group: str, named: NamedPage) -> None:
        """Copy the page, some time, if it still has its name then."""
        ...

    def evicted(self, group: str, named: NamedPage) -> None:
        """The page is about to be given to another sequence: the last moment to copy it."""
        ...

    def fetch(self, wanted: Sequence[Wanted]) -> Future[Sequence[bool]]:
        """Write to these pages what they are called by, verified, and tell which of them were written.

        It may give up at the first needed page that is not there. Nobody else touches the pages meanwhile.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Restore:
    """Pages on their way, and the sequence that holds them and those before them."""

    held: str
    wanted: tuple[Wanted, ...]
    written: Future[Sequence[bool]]


class Restores:
    """What comes back into the pages of a table.

    Attributes:
        keeper: where from; None: nowhere.
        on_ready: called, from any thread, when there is something to `collect`.
        asked_tokens, found_tokens: tokens that were not in the pool and looked for outside, and those found there.
        pages: that came back; so many for each token as there are layer groups.
    """

    def __init__(self, table: PageTable) -> None:
        self.keeper: PageKeeper | None = None
        self.on_ready: Callable[[], None] = lambda: None
        self.asked_tokens = self.found_tokens = self.pages = 0
        self._table = table
        # The group whose pages tell how far a prompt was found: where there is a window not all of them are needed.
        self._telling = next((each.name for each in table.groups if each.window is None), table.groups[0].name)
        self._begun = 0
        self._active: list[_Restore] = []
        self._names: Counter[Name] = Counter()

    def __bool__(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._active)

    def __contains__(self, name: Name) -> bool:
        """Whether a page of that name is on its way."""
        return name in self._names

    def begin(self, names: Sequence[Name], count: int, fits: Callable[[str], bool]) -> bool:
        """Bring back what follows the `count` pages that were matched just now; it may be there at once.

        Args:
            names: of the pages that are wanted.
            fits: whether there is room for who wants them, were it the sequence of that id, which holds what is there.

        Returns:
            False where there is no room for the sequence: what came now would have to make room before it is let in.
        """
        if self.keeper is None or count == len(names):
            return True
        self._begun += 1
        # Hold what is there, lest it makes room for what comes after it.
        self._table.adopt(held := f"restore {self._begun}", names, count)
        if not fits(held):
            self._table.release(held)
            return False
        size = self._table.groups[0].page_size
        self.asked_tokens += (len(names) - count) * size
        room = min(self._table.free(group.name) for group in self._table.groups)
        end = min(len(names), count + room)
        reserved = self._table.reserve(held, end * size)
        assert reserved
        wanted = tuple(
            Wanted(group.name, self._table.row(held, group.name)[index], names[index], group.window is None)
            for index in range(count, end)
            for group in self._table.groups
            if not self._table.finds(group.name, names[index])
        )
        if not wanted:
            self._table.release(held)
            return True
        self._active.append(_Restore(held, wanted, self.keeper.fetch(wanted)))
        self._names.update(each.name for each in wanted)
        self.collect()
        if self._active and self._active[-1].held == held:
            self._active[-1].written.add_done_callback(lambda _: self.on_ready())
        return True

    def collect(self) -> None:
        """Let the pages be found that have arrived."""
        for restore in [each for each in self._active if each.written.done()]:
            self._active.remove(restore)
            self._names -= Counter(each.name for each in restore.wanted)
            self._settle(restore)

    def finish(self) -> None:
        """Wait for all that is on its way."""
        for restore in self._active:
            restore.written.exception()
        self.collect()

    def _settle(self, restore: _Restore) -> None:
        failed = restore.written.exception() is not None
        missing = False
        written = [False] * len(restore.wanted) if failed else restore.written.result()
        for wanted, arrived in zip(restore.wanted, written, strict=True):
            missing |= wanted.needed and not arrived
            if arrived:
                self.pages += 1
                self._table.name(wanted.group, wanted.page, wanted.name)
                if wanted.group == self._telling and not missing:
                    self.found_tokens += self._table.groups[0].page_size
        self._table.release(restore.held)
