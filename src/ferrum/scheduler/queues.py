"""Live requests, and the order in which their sequences are served.

A policy gives each request a rank and a tenant queue. The scheduler serves the tenant queue that was served least, and
within a queue the lowest rank. With one queue the rank alone decides.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from ferrum.core.policy_config import POLICY, PolicyConfig
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import Request
from ferrum.scheduler.sequence import Sequence, begin

Rank: TypeAlias = tuple[float, ...]
"""Compared as tuples; smaller is served first."""


class Policy(Protocol):
    """Order of requests."""

    def rank(self, request: Request) -> Rank:
        """Return the rank, asked once on arrival; ties are served in the order of arrival."""

    def tenant(self, request: Request) -> str:
        """Return the name of the request's tenant queue, always the same for a request."""


class FirstComeFirstServed:
    """Order of arrival."""

    def rank(self, request: Request) -> Rank:
        return (request.arrival,)

    def tenant(self, request: Request) -> str:  # noqa: ARG002 - a policy's signature
        return ""


class PriorityFirst(FirstComeFirstServed):
    """Order of priority, smaller values first, then of arrival."""

    def rank(self, request: Request) -> Rank:
        return (request.priority, request.arrival)


class FairTenants(FirstComeFirstServed):
    """Tenants in turn by the tokens they were served; each tenant's requests in order of arrival."""

    def tenant(self, request: Request) -> str:
        return request.tenant


POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {"fcfs": FirstComeFirstServed(), "priority": PriorityFirst(), "fair": FairTenants()}
)
"""The policies by the names that options use."""


SPARE_DEADLINES: Final = 256
"""Deadlines of ended requests kept in the heap, in addition to one for each live request."""


@dataclass(slots=True, eq=False)
class _LiveRequest:
    """A request, its choices that still hold pages or wait, and its prompt's log-probabilities so far."""

    request: Request
    sequences: list[Sequence]
    scores: list[TokenLogprobs] = field(default_factory=list)


class LiveRequests:
    """Every request from its arrival until its last choice has left.

    Args:
        policy: ranks them.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._live: dict[str, _LiveRequest] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for live in self._live.values() for sequence in live.sequences)

    def add(self, request: Request) -> list[Sequence]:
        """Add a request whose id is not live, and return its choices."""
        rank = (*self._policy.rank(request), self._added)
        live = _LiveRequest(request, begin(request, rank, self._policy.tenant(request)))
        self._added += 1
        self._live[request.request_id] = live
        if request.deadline is not None:
            heappush(self._deadlines, (request.deadline, request.request_id))
        if len(self._deadlines) > 2 * len(self._live) + SPARE_DEADLINES:
            self._deadlines = [each for each in self._deadlines if self._is_live(*each)]
            heapify(self._deadlines)
        return live.sequences

    def _is_live(self, deadline: float, request_id: str) -> bool:
        """Return whether a heap entry belongs to a live request: ended ones stay in the heap, and ids come back."""
        live = self._live.get(request_id)
        return live is not None and live.request.deadline == deadline

    def remove(self, sequence: Sequence) -> None:
        """Remove a choice, and with the last one the request."""
        live = self._live[sequence.request.request_id]
        live.sequences.remove(sequence)
        if not live.sequences:
            del self._live[sequence.request.request_id]

    def choices(self, request_id: str) -> list[Sequence]:
        """Return the live choices of a request; none if the request is unknown."""
        live = self._live.get(request_id)
        return list(live.sequences) if live is not None else []

    def due(self, now: float) -> list[str]:
        """Return the requests whose deadline is `now` or earlier, each once."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, request_id = heappop(self._deadlines)
            if self._is_live(deadline, request_id):
                due.append(request_id)
        return due

    def scores(self, sequence: Sequence) -> list[TokenLogprobs]:
        """Return the log-probabilities of the request's prompt so far; the caller appends to the list."""
        return self._live[sequence.request.request_id].scores

    def scored(self, sequence: Sequence) -> int:
        """Return how many prompt tokens need no log-probabilities any more; the first one never does."""
        return 1 + len(self._live[sequence.request.request_id].scores)


# These run no Python code per sequence.
_rank, _tenant = attrgetter("rank"), attrgetter("tenant")


class Ranked(list[Sequence]):
    """Sequences in the order of their ranks; only `add` and `remove` change it."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: set[int] = set()

    def __contains__(self, sequence: object) -> bool:
        return id(sequence) in self._ids

    def add(self, sequence: Sequence) -> None:
        """Insert the sequence."""
        insort(self, sequence, key=_rank)
        self._ids.add(id(sequence))

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that is present."""
        self._ids.remove(id(sequence))
        del self[bisect_left(self, sequence.rank, key=_rank)]


class WaitingQueue:
    """Waiting sequences, and an account of the tokens served to each tenant: the smallest account comes next.

    These are the virtual token counters of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024). A
    tenant that starts to wait is lifted to the smallest account of the waiting tenants, or to that of the tenant served
    last, so that no tenant saves up credit while it asks for nothing.

    Args:
        config: constants.
    """

    def __init__(self, config: PolicyConfig = POLICY) -> None:
        self._config = config
        self._queues: dict[str, Ranked] = {}
        self._served: dict[str, float] = {}
        self._last = ""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __contains__(self, sequence: Sequence) -> bool:
        queue = self._queues.get(sequence.tenant)
        return queue is not None and sequence in queue

    @property
    def next(self) -> Sequence | None:
        """The sequence to be asked next if only one tenant waits; otherwise it depends on the accounts by then."""
        return next(iter(self._queues.values()))[0] if len(self._queues) == 1 else None

    def add(self, sequence: Sequence) -> None:
        """Insert the sequence, and lift the account of a tenant that was not waiting."""
        tenant = sequence.tenant
        if tenant not in self._queues:
            waiting = [self._served[each] for each in self._queues]
            floor = min(waiting, default=self._served.get(self._last, 0.0))
            self._served[tenant] = max(floor, self._served.get(tenant, 0.0))
            self._queues[tenant] = Ranked()
        self._queues[tenant].add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that is present."""
        self._queues[sequence.tenant].remove(sequence)
        if not self._queues[sequence.tenant]:
            del self._queues[sequence.tenant]

    def rounds(
        self, running: Iterable[Sequence], behind: Collection[Sequence], admits: Callable[[], bool] = lambda: True
    ) -> Iterator[Sequence]:
        """Yield the running sequences `behind` and the waiting ones, each once: by rank within each tenant.

        The next tenant is chosen when the next sequence is requested, by the accounts at that time; ties go to the
        tenant with fewer running sequences. Sequences may leave and arrive meanwhile.

        Args:
            running: all running sequences.
            behind: those of them whose prompts are not computed yet.
            admits: whether to yield more waiting sequences: the queue may be long and the step short.
        """
        if not behind and not self._queues:
            return
        runs = Counter(map(_tenant, running))
        if len(self._served) > self._config.max_tenant_accounts:
            kept = {*runs, *self._queues, self._last}
            self._served = {tenant: served for tenant, served in self._served.items() if tenant in kept}
        heap: list[tuple[float, int, Rank, str, Sequence, Iterator[Sequence]]] = []

        def enqueue(tenant: str, line: Iterator[Sequence]) -> None:
            first = next(line, None)
            if first is not None:
                heappush(heap, (self._served[tenant], runs[tenant], first.rank, tenant, first, line))

        behind_of: dict[str, list[Sequence]] = {tenant: [] for tenant in self._queues}
        for sequence in behind:
            behind_of.setdefault(sequence.tenant, []).append(sequence)
        for tenant, own in behind_of.items():
            enqueue(tenant, self._line(tenant, own, admits))
        remaining = {sequence.cache_id for sequence in behind}
        while heap and (remaining or admits()):
            *_, tenant, first, line = heappop(heap)
            remaining.discard(first.cache_id)
            yield first
            enqueue(tenant, line)

    def _line(self, tenant: str, behind: Collection[Sequence], admits: Callable[[], bool]) -> Iterator[Sequence]:
        """Yield one tenant's sequences by rank, running and waiting ones merged."""
        passed, left = 0, deque(behind)
        while True:
            queue = self._queues.get(tenant) if admits() else None
            first = queue[passed] if queue is not None and passed < len(queue) else None
            if left and (first is None or left[0].rank < first.rank):
                yield left.popleft()
            elif first is not None:
                yield first
                passed += first in self._queues.get(tenant, ())
            else:
                return

    def count_prompt(self, sequence: Sequence, tokens: int) -> None:
        """Charge prompt tokens to the tenant; recomputation after a preemption is free."""
        self._last = sequence.tenant
        if not sequence.preemptions:
            self._served[self._last] += tokens * self._config.prompt_token_weight

    def charge(self, tenant: str, tokens: int) -> None:
        """Charge generated tokens to a tenant."""
        self._served[tenant] += tokens * self._config.output_token_weight


def next_victim(running: Iterable[Sequence], exempt: Collection[str]) -> tuple[Sequence, int] | None:
    """Return the running sequence to preempt first, and how many of its tenant stand before it.

    It is the one with the most sequences of its tenant before it, and of several such the one served last. The
    sequence that is served first of all is never preempted for another one.

    Args:
        running: in the order of their ranks.
        exempt: cache ids that cannot be preempted.
    """
    before: Counter[str] = Counter()
    last: tuple[Sequence, int] | None = None
    for sequence in running:
        owner = sequence.tenant
        if sequence.cache_id not in exempt and (last is None or before[owner] >= last[1]):
            last = (sequence, before[owner])
        before[owner] += 1
    return last


def victims_for(waiting: Sequence, running: Iterable[Sequence], exempt: Collection[str]) -> list[Sequence]:
    """Return the sequences that may be preempted for a waiting one, in order.

    They belong to tenants with more running sequences than the waiting one's tenant.

    Args:
        waiting: the sequence to be admitted.
        running, exempt: as in `next_victim`.
    """
    left, victims = list(running), list[Sequence]()
    own = sum(each.tenant == waiting.tenant for each in left)
    while (last := next_victim(left, exempt)) is not None and last[1] > own:
        victims.append(last[0])
        left.remove(last[0])
    return victims
