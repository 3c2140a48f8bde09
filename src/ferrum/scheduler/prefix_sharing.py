"""The scheduler's side of the prefix cache: what sequences are called, what they find, and whom they wait for.

A prompt that begins like one which is being computed just now would compute the same pages again. It waits instead, for
no longer than the other one takes, and then finds them.

Choices of one request: the prompt but for its last token is computed once, and each takes it from there.

What those that wait may begin with, found without looking at all of them in every step.

A step is short and a queue may be long: who waits for others to compute its beginning is passed over until they have,
and no more are found to have to wait in a step than takes little time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ferrum.cache.page_hashes import Name
from ferrum.cache.prefix_hash import PrefixScope, Tail, Tails
from ferrum.core.types import FinishReason, Sequence
from ferrum.scheduler.admission import Newcomers
from ferrum.scheduler.page_protocol import Pages
from ferrum.scheduler.queues import Ranked, Waiting
from ferrum.scheduler.requests import LiveRequests
from ferrum.scheduler.sequence import reusable, shared_length


@dataclass(frozen=True, slots=True)
class Found:
    """What a sequence that waits may begin with.

    Attributes:
        pages: leading pages that are there.
        tail: part of one more, to be copied.
        soon: the running sequence that is computing the next one, or None.
        on_its_way: the next one is about to be there, without anybody computing it.
    """

    pages: int
    tail: Tail | None = None
    soon: Sequence | None = None
    on_its_way: bool = False


class Prefixes:
    """Names the pages of sequences and looks them up.

    Args:
        pages: the page table.
        scope: within which equal tokens have equal keys and values; None: nothing has a name, nothing is found.
        step: most tokens by which a sequence grows at a time.
        newcomers: tell whether there is room for whom pages are to be brought back.
    """

    def __init__(self, pages: Pages, scope: PrefixScope | None, step: int, newcomers: Newcomers) -> None:
        self._pages = pages
        self._scope = scope
        self._step = step
        self._newcomers = newcomers
        self._tails = Tails()
        self._computing: dict[Name, Sequence] = {}
        self._promised: dict[str, list[Name]] = {}
        self._restored: set[str] = set()
        self._awaited: dict[str, int] = {}

    def look(self, sequence: Sequence, most: int) -> Found:
        """What is there of the sequence's first `most` tokens."""
        self._name(sequence)
        if self._scope is None:
            return Found(0)
        names = sequence.names[: most // self._scope.page_size]
        count = self._pages.match(names)
        restores = self._pages.restores
        if count < len(names) and names[count] not in restores and sequence.cache_id not in self._restored:
            if restores.begin(names, count, lambda held: self._newcomers.fits(sequence, held=held)):
                self._restored.add(sequence.cache_id)
            count = self._pages.match(names)
        tail = self._tail(sequence, count, most)
        if count == len(names):
            return Found(count, tail)
        return Found(count, tail, self._computing.get(names[count]), names[count] in restores)

    def await_next(self, sequence: Sequence, found: Found) -> None:
        """The sequence waits for the page that follows what was found just now, which is coming."""
        self._awaited[sequence.cache_id] = found.pages

    def glimpse(self, sequence: Sequence, most: int) -> Found | None:
        """Where a sequence that waits would have to wait now, were all there that was there; None: look.

        It is not to begin with this, but to be passed over: pages that were found may be gone.
        """
        count = self._awaited.get(sequence.cache_id)
        if count is None or self._scope is None:
            return None
        names, restores = sequence.names, self._pages.restores
        for at in range(count, most // self._scope.page_size):
            soon, on_its_way = self._computing.get(names[at]), names[at] in restores
            if soon is not None or on_its_way:
                self._awaited[sequence.cache_id] = at
                return Found(at, None, soon, on_its_way)
            if not self._pages.match(names[at : at + 1]):
                break
        return None

    def length(self, found: Found) -> int:
        """How many tokens those are."""
        size = self._scope.page_size if self._scope is not None else 0
        return found.pages * size + (found.tail.tokens if found.tail is not None else 0)

    def adopt(self, sequence: Sequence, found: Found) -> None:
        """Begin the sequence with what was found just now; without the tail where there is no room for its copy."""
        cache_id, tail = sequence.cache_id, found.tail
        self._pages.adopt(cache_id, sequence.names, found.pages, tail)
        if tail is not None and not self._pages.fits(len(sequence.tokens), self._step, cache_id=cache_id):
            self._pages.release(cache_id)
            self._pages.adopt(cache_id, sequence.names, found.pages)
            tail = None
        sequence.computed = self.length(replace(found, tail=tail))

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

    def leave(self, sequence: Sequence) -> None:
        """The sequence gives its pages back. Others may find the last one too, where all is computed and was sound."""
        sound = sequence.generated or sequence.request.params.max_tokens == 0
        if sound and sequence.finish is not FinishReason.ERROR:
            self._keep_tail(sequence)
        self.withdraw(sequence)
        self._pages.release(sequence.cache_id)

    def _keep_tail(self, sequence: Sequence) -> None:
        stored = min(sequence.computed, len(sequence.tokens))
        if self._scope is None or stored < len(sequence.tokens) - 1:
            return
        self._name(sequence)
        count, rest = divmod(stored, self._scope.page_size)
        if rest:
            before, tokens = self._before(sequence, count), sequence.tokens[stored - rest : stored]
            name = self._scope.called(before, tokens)
            self._pages.keep_tail(sequence.cache_id, stored, name)
            self._tails.add(before, name, tokens)

    def withdraw(self, sequence: Sequence) -> None:
        """Nobody need wait for this sequence any more; should it be looked up again, all is looked up."""
        self._restored.discard(sequence.cache_id)
        self._awaited.pop(sequence.cache_id, None)
        for name in self._promised.pop(sequence.cache_id, ()):
            if self._computing.get(name) is sequence:
                del self._computing[name]

    def _tail(self, sequence: Sequence, count: int, most: int) -> Tail | None:
        """Part of a page that holds what follows the first `count` ones, up to the sequence's first `most` tokens."""
        assert self._scope is not None
        begin = count * self._scope.page_size
        if begin == most:
            return None
        # The next page may be there to its end, of which the last token is to run all the same.
        if count < len(sequence.names) and self._pages.has_tail(sequence.names[count]):
            return Tail(sequence.names[count], most - begin)
        before = self._before(sequence, count)
        wanted = sequence.tokens[begin : min(most, begin + self._scope.page_size - 1)]
        return self._tails.find(before, wanted, partial(self._scope.called, before), self._pages.has_tail)

    def _before(self, sequence: Sequence, count: int) -> Name:
        """What a page is named after that has `count` pages before it."""
        return sequence.names[count - 1] if count else self._root(sequence)

    def _root(self, sequence: Sequence) -> Name:
        assert self._scope is not None
        request = sequence.request
        return self._scope.root(adapter=request.adapter, tenant=request.tenant, salt=request.salt)

    def _name(self, sequence: Sequence) -> None:
        if self._scope is not None and len(sequence.tokens) // self._scope.page_size > len(sequence.names):
            self._scope.extend(sequence.names, self._root(sequence), sequence.tokens)


class Siblings:
    """Hands the prompt of a request from choice to choice.

    Args:
        live, running, waiting: the scheduler's books; an heir changes from waiting to running.
        pages: the page table.
        prefixes: told what a choice begins with.
    """

    def __init__(self, live: LiveRequests, running: Ranked, waiting: Waiting, pages: Pages, prefixes: Prefixes) -> None:
        self._live = live
        self._running = running
        self._waiting = waiting
        self._pages = pages
        self._prefixes = prefixes

    def source(self, sequence: Sequence) -> Sequence | None:
        """A running choice that has the whole prompt which this one would take from it."""
        shared = shared_length(sequence)
        return next((each for each in self._others(sequence) if self._can_share(each, shared)), None)

    def are_computing(self, sequence: Sequence) -> bool:
        """Whether a running choice is still at work on that prompt."""
        return any(each.computed < shared_length(each) for each in self._others(sequence))

    def share(self, source: Sequence, target: Sequence) -> None:
        """Begin the target with the prompt that the source has."""
        self._pages.fork(source.cache_id, target.cache_id)
        self._pages.truncate(target.cache_id, shared_length(target))
        target.computed = shared_length(target)
        self._prefixes.inherit(source, target)

    def bequeath(self, sequence: Sequence) -> None:
        """Before the last choice that has the prompt goes, hand it, and the place, to one that waits."""
        if sequence.finish is FinishReason.ERROR or not self._can_share(sequence, shared_length(sequence)):
            return
        if self.source(sequence) is not None:
            return
        siblings = self._live.choices(sequence.request.request_id)
        heir = next((each for each in siblings if each.finish is None and each in self._waiting), None)
        if heir is not None:
            self.share(sequence, heir)
            self._waiting.remove(heir)
            self._running.add(heir)

    def _others(self, sequence: Sequence) -> Iterator[Sequence]:
        """The choices that run, where choices have anything in common; an ended one is none of them."""
        siblings = self._live.choices(sequence.request.request_id) if shared_length(sequence) else ()
        return (each for each in siblings if each.finish is None and each in self._running)

    def _can_share(self, source: Sequence, shared: int) -> bool:
        return source.computed >= shared > 0 and self._pages.can_truncate(source.cache_id, shared)


MOST_PAGES: Final = 2048
"""Pages that are looked up at a time for sequences that are to wait, a few milliseconds' work."""

LOOK_PAGES: Final = 16
"""What else a look costs, in pages."""


class Beginnings:
    """Tells newcomers what they begin with.

    Args:
        live: the scheduler's books.
        siblings, prefixes: what there is of prompts.
    """

    def __init__(self, live: LiveRequests, siblings: Siblings, prefixes: Prefixes) -> None:
        self._live = live
        self._siblings = siblings
        self._prefixes = prefixes
        self._left = 0
        self._computing: set[str] = set()

    @property
    def spent(self) -> bool:
        """Whether all that wait are passed over until `renew`."""
        return self._left <= 0

    def renew(self) -> None:
        """The queue is gone through once more: in the next step, or because somebody has left it."""
        self._left = MOST_PAGES
        self._computing.clear()

    def of(self, sequence: Sequence) -> Sequence | Found | None:
        """What a newcomer begins with: the prompt of another choice, or what is found of it if that is more; None: it
        waits while another choice computes the prompt, or a request that is served first the same beginning.
        """
        request_id, most = sequence.request.request_id, reusable(sequence, self._live.scored(sequence))
        if self.spent or request_id in self._computing or self._waits(sequence, self._prefixes.glimpse(sequence, most)):
            return None
        sibling = self._siblings.source(sequence)
        if sibling is None and self._siblings.are_computing(sequence):
            self._computing.add(request_id)
            return None
        if sibling is not None and not sequence.generated:
            return sibling
        found = self._prefixes.look(sequence, most)
        if self._waits(sequence, found):
            self._prefixes.await_next(sequence, found)
            self._left -= LOOK_PAGES + len(sequence.names)
            return None
        return found if sibling is None or self._prefixes.length(found) > shared_length(sequence) else sibling

    def _waits(self, sequence: Sequence, found: Found | None) -> bool:
        """Whether what follows is about to be there, or is computed by one that is served first."""
        if found is None:
            return False
        return found.on_its_way or (found.soon is not None and self._live.rank(found.soon) < self._live.rank(sequence))
