"""The scheduler's side of the prefix cache: what sequences are called, what they find, and whom they wait for.

A prompt that begins like one which is being computed just now would compute the same pages again. It waits instead, for
no longer than the other one takes, and then finds them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ferrum.cache.names import Name
from ferrum.cache.prefix import PrefixScope
from ferrum.core.types import Sequence
from ferrum.scheduler.plan import Pages


@dataclass(frozen=True, slots=True)
class Found:
    """What a sequence that waits may begin with.

    Attributes:
        pages: leading pages that are there.
        soon: the running sequence that is computing the next one, or None.
    """

    pages: int
    soon: Sequence | None


class Prefixes:
    """Names the pages of sequences and looks them up.

    Args:
        pages: the page table.
        scope: within which equal tokens have equal keys and values; None: nothing has a name, nothing is found.
    """

    def __init__(self, pages: Pages, scope: PrefixScope | None) -> None:
        self._pages = pages
        self._scope = scope
        self._computing: dict[Name, Sequence] = {}
        self._promised: dict[str, list[Name]] = {}
        self._restored: set[str] = set()

    def look(self, sequence: Sequence, most: int) -> Found:
        """What is there of the sequence's first `most` tokens."""
        self._name(sequence)
        if self._scope is None:
            return Found(0, None)
        names = sequence.names[: most // self._scope.page_size]
        count = self._pages.match(names)
        if sequence.cache_id not in self._restored:
            self._restored.add(sequence.cache_id)
            self._pages.restore(names, count)
            count = self._pages.match(names)
        return Found(count, self._computing.get(names[count]) if count < len(names) else None)

    def adopt(self, sequence: Sequence, found: Found) -> None:
        """Begin the sequence with what was found just now."""
        self._pages.adopt(sequence.cache_id, sequence.names, found.pages)
        sequence.computed = found.pages * (self._scope.page_size if self._scope is not None else 0)

    def admit(self, sequence: Sequence, asked: int) -> None:
        """The sequence runs: promise the pages of its prompt that it will compute, and count what it found.

        Args:
            asked: how many tokens it would have taken.
        """
        if self._scope is None:
            return
        if not sequence.preemptions and asked:
            sequence.cached = sequence.computed
            self._pages.count_lookup(len(sequence.request.prompt), sequence.computed)
        size = self._scope.page_size
        promised = sequence.names[sequence.computed // size : len(sequence.request.prompt) // size]
        for name in promised:
            self._computing.setdefault(name, sequence)
        if promised:
            self._promised[sequence.cache_id] = promised

    def inherit(self, source: Sequence, target: Sequence) -> None:
        """The target has begun as a fork of the source, with what that one found."""
        self._name(target)
        self._pages.label(target.cache_id, target.names)
        target.cached = source.cached

    def prove(self, sequence: Sequence) -> None:
        """The sequence has produced something finite: others may use its full pages."""
        self._name(sequence)
        self._pages.prove(sequence.cache_id)
        self.withdraw(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Nobody need wait for this sequence any more; should it be looked up again, all is looked up."""
        self._restored.discard(sequence.cache_id)
        for name in self._promised.pop(sequence.cache_id, ()):
            if self._computing.get(name) is sequence:
                del self._computing[name]

    def _name(self, sequence: Sequence) -> None:
        if self._scope is not None and len(sequence.tokens) // self._scope.page_size > len(sequence.names):
            request = sequence.request
            root = self._scope.root(adapter=request.adapter, tenant=request.tenant, salt=request.salt)
            self._scope.extend(sequence.names, root, sequence.tokens)
