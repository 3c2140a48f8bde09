"""Sequences in the order in which they are served: by rank within a share, and the shares by turns."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import heappop, heappush
from typing import Final

from ferrum.core.types import Sequence
from ferrum.scheduler.policy import Rank

PROMPT_COST: Final = 1.0
OUTPUT_COST: Final = 2.0
"""What a token of a prompt and a generated one count on the books of a share: the weights of the paper below."""

MAX_BOOKS: Final = 4096
"""Beyond so many shares those that have no sequence are forgotten, which forgives them what they were served."""


class Ranked:
    """Sequences in the order of a rank that is unique and never changes."""

    def __init__(self, rank: Callable[[Sequence], Rank]) -> None:
        self._rank = rank
        self._items: list[Sequence] = []
        self._ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Sequence:
        return self._items[index]

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    def __contains__(self, sequence: Sequence) -> bool:
        return id(sequence) in self._ids

    def add(self, sequence: Sequence) -> None:
        """Put the sequence in its place."""
        insort(self._items, sequence, key=self._rank)
        self._ids.add(id(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is there."""
        self._ids.remove(id(sequence))
        del self._items[bisect_left(self._items, self._rank(sequence), key=self._rank)]


class Waiting:
    """The sequences that wait, and what each share was served: the one that was served least has the next turn.

    These are the virtual token counters of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): every
    token is counted when it is served, and a share that comes to wait is lifted to the least counter of those that
    wait, or else to that of the last turn, so that nobody saves up turns while asking for nothing.

    Args:
        rank: the order within a share.
        share: whose turn a sequence takes.
    """

    def __init__(self, rank: Callable[[Sequence], Rank], share: Callable[[Sequence], str]) -> None:
        self._rank = rank
        self._share = share
        self._queues: dict[str, Ranked] = {}
        self._served: dict[str, float] = {}
        self._last = ""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __contains__(self, sequence: Sequence) -> bool:
        queue = self._queues.get(self._share(sequence))
        return queue is not None and sequence in queue

    @property
    def next(self) -> Sequence | None:
        """Who will be asked next, where only one share waits: else it depends on what is counted by then."""
        return next(iter(self._queues.values()))[0] if len(self._queues) == 1 else None

    def add(self, sequence: Sequence) -> None:
        """Put the sequence in its place, and lift its share where it has not been waiting."""
        share = self._share(sequence)
        if share not in self._queues:
            waiting = [self._served[each] for each in self._queues]
            floor = min(waiting, default=self._served.get(self._last, 0.0))
            self._served[share] = max(floor, self._served.get(share, 0.0))
            self._queues[share] = Ranked(self._rank)
        self._queues[share].add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is there."""
        share = self._share(sequence)
        self._queues[share].remove(sequence)
        if not self._queues[share]:
            del self._queues[share]

    def turns(
        self, running: Iterable[Sequence], behind: Collection[Sequence], admits: Callable[[], bool] = lambda: True
    ) -> Iterator[Sequence]:
        """The sequences `behind`, which run, and those that wait, each once: by rank in each share.

        The next turn is chosen when it is asked for, from what has been counted by then; ties go to the share that
        runs less. Sequences may leave and come while this goes on.

        Args:
            running: all that run.
            behind: those of them that take turns.
            admits: whether more of those that wait are worth the asking: a queue may be long, and a step is short.
        """
        if not behind and not self._queues:
            return
        runs = Counter(map(self._share, running))
        if len(self._served) > MAX_BOOKS:
            kept = {*runs, *self._queues, self._last}
            self._served = {share: served for share, served in self._served.items() if share in kept}
        heap: list[tuple[float, int, Rank, str, Sequence, Iterator[Sequence]]] = []

        def line_up(share: str, line: Iterator[Sequence]) -> None:
            head = next(line, None)
            if head is not None:
                heappush(heap, (self._served[share], runs[share], self._rank(head), share, head, line))

        behind_of: dict[str, list[Sequence]] = {share: [] for share in self._queues}
        for sequence in behind:
            behind_of.setdefault(self._share(sequence), []).append(sequence)
        for share, own in behind_of.items():
            line_up(share, self._line(share, own, admits))
        ahead = {sequence.cache_id for sequence in behind}
        while heap and (ahead or admits()):
            *_, share, head, line = heappop(heap)
            ahead.discard(head.cache_id)
            yield head
            line_up(share, line)

    def _line(self, share: str, behind: Collection[Sequence], admits: Callable[[], bool]) -> Iterator[Sequence]:
        passed, left = 0, deque(behind)
        while True:
            queue = self._queues.get(share) if admits() else None
            head = queue[passed] if queue is not None and passed < len(queue) else None
            if left and (head is None or self._rank(left[0]) < self._rank(head)):
                yield left.popleft()
            elif head is not None:
                yield head
                passed += head in self._queues.get(share, ())
            else:
                return

    def count_prompt(self, sequence: Sequence, tokens: int) -> None:
        """A turn was given for so many tokens. What is computed anew after a preemption was counted before."""
        self._last = self._share(sequence)
        if not sequence.preemptions:
            self._served[self._last] += tokens * PROMPT_COST

    def count_output(self, sequence: Sequence, tokens: int) -> None:
        """So many tokens were generated."""
        self._served[self._share(sequence)] += tokens * OUTPUT_COST


def last_in_turn(
    running: Iterable[Sequence], share: Callable[[Sequence], str], exempt: Collection[str]
) -> tuple[Sequence, int] | None:
    """The running sequence that gives way first, and how many of its own share stand before it.

    It is the one with the most of its own share before it, and of several such the one that is served last. So the
    sequence that is served first of all gives way to none.

    Args:
        running: in the order of their ranks.
        exempt: cache ids that are not asked.
    """
    before: Counter[str] = Counter()
    last: tuple[Sequence, int] | None = None
    for sequence in running:
        owner = share(sequence)
        if sequence.cache_id not in exempt and (last is None or before[owner] >= last[1]):
            last = (sequence, before[owner])
        before[owner] += 1
    return last


def yielding_to(
    newcomer: Sequence, running: Iterable[Sequence], share: Callable[[Sequence], str], exempt: Collection[str]
) -> list[Sequence]:
    """Those that would give way to a newcomer, one after the other: of shares that have more places than its own.

    Args:
        running, exempt: as in `last_in_turn`.
    """
    left, yielding = list(running), list[Sequence]()
    own = sum(share(each) == share(newcomer) for each in left)
    while (last := last_in_turn(left, share, exempt)) is not None and last[1] > own:
        yielding.append(last[0])
        left.remove(last[0])
    return yielding
