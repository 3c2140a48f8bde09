"""Random scheduler steps with arrivals, aborts, deadlines, full pools, drafts, failures and late commits.

The page table is consistent after every step. In the end each choice has had exactly one terminal event and the tokens
that its request determines (or a prefix of them if it was cut short), and no page has leaked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from fakes import FakeExecutor, Followed, Guesses, admit_all, scope_of
from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.cache.state_slots import StateSlots
from ferrum.core.errors import ContextOverflow, FerrumError, KvExhausted, NonFiniteLogits
from ferrum.core.params import SamplingParams
from ferrum.core.step import CARRY, FinishedStep, Inputs, Span
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.sequence import Sequence as Choice
from ferrum.scheduler.step_plan import StepPlan
from random_load import RandomLoad

CONTEXT = 48
MAX_DRAFT = 4
VOCABULARY = 31
WHOLE = {FinishReason.STOP, FinishReason.LENGTH}


@dataclass(frozen=True)
class Setup:
    """Pool and scheduler options of one run."""

    groups: tuple[PageGroup, ...]
    policy: str
    budget: int
    max_sequences: int
    depth: int
    prefixes: bool = False
    swap: bool = False
    slow: bool = False
    admit_all: bool = False
    drafts: bool = True
    slots: int = 0
    blocks: bool = False


PREFIXES = Setup(
    (PageGroup("full", 20, 4),), "fcfs", budget=12, max_sequences=8, depth=0, prefixes=True, admit_all=True
)
WINDOWS = Setup(
    (PageGroup("full", 24, 4), PageGroup("window", 60, 2, 7)), "priority", budget=16, max_sequences=6, depth=0
)
SHARED_WINDOWS = replace(
    WINDOWS, groups=(PageGroup("full", 50, 2), PageGroup("window", 60, 2, 7)), prefixes=True, admit_all=True
)

SETUPS = {
    "crowded": replace(PREFIXES, prefixes=False),
    "windows": WINDOWS,
    "prefixes": PREFIXES,
    "swapped": replace(PREFIXES, swap=True),
    "swapped slowly": replace(
        PREFIXES,
        groups=(PageGroup("full", 40, 2), PageGroup("window", 40, 2, 7)),
        policy="fair",
        depth=1,
        swap=True,
        slow=True,
        admit_all=True,
    ),
    "swapped in windows": replace(
        SHARED_WINDOWS, groups=(PageGroup("full", 44, 2), PageGroup("window", 60, 2, 7)), swap=True
    ),
    "prefixes in windows": SHARED_WINDOWS,
    "short of the context": Setup((PageGroup("full", 9, 4),), "priority", budget=5, max_sequences=3, depth=1),
    "pages of one token": Setup(
        (PageGroup("full", 110, 1),), "fcfs", budget=40, max_sequences=16, depth=1, prefixes=True, admit_all=True
    ),
    "one step ahead": replace(PREFIXES, depth=1, drafts=False),
    "two steps ahead": replace(SHARED_WINDOWS, depth=2, drafts=False, swap=True, slow=True, policy="fair"),
    "states": replace(PREFIXES, slots=20),
    "states in windows": replace(SHARED_WINDOWS, slots=13, policy="fair"),
    "states without prefixes": replace(PREFIXES, prefixes=False, slots=17),
    "states two steps ahead": replace(PREFIXES, slots=30, depth=2, drafts=False),
    "blocks": replace(PREFIXES, blocks=True),
    "blocks in windows, swapped": replace(
        SHARED_WINDOWS, groups=(PageGroup("full", 44, 2), PageGroup("window", 60, 2, 7)), swap=True, blocks=True
    ),
    "blocks one step ahead": replace(PREFIXES, depth=1, drafts=False, blocks=True, max_sequences=12),
    "fair": Setup((PageGroup("full", 20, 4),), "fair", budget=12, max_sequences=6, depth=0),
    "fair and trailing": Setup((PageGroup("full", 24, 2),), "fair", budget=10, max_sequences=5, depth=1, prefixes=True),
}


@dataclass
class Fuzz(RandomLoad):
    """A scheduler under random load, with the expected outcomes."""

    setup: Setup
    random: Random
    clock: float = 0.0
    added: int = 0
    expected: dict[tuple[str, int], Followed] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    events_of: dict[tuple[str, int], list[TokenEvent]] = field(default_factory=dict)
    live: set[tuple[str, int]] = field(default_factory=set)
    ahead: int = 0
    submitted: list[tuple[StepPlan, FinishedStep | FerrumError]] = field(default_factory=list)
    ends: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))
    preemptions: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        states = StateSlots(self.setup.slots) if self.setup.slots else None
        self.pages = PageTable(self.setup.groups, max_draft=MAX_DRAFT, states=states)
        self.context = min(CONTEXT, self.pages.capacity_tokens + 1)
        self.executor = FakeExecutor(self.pages, fault=self.fault, vocabulary=VOCABULARY)
        if self.setup.swap:
            self.executor.keep_evicted(slow=self.setup.slow)
        self.scheduler = Scheduler(
            self.pages,
            policy=POLICIES[self.setup.policy],
            max_tokens_per_step=self.setup.budget,
            max_sequences=self.setup.max_sequences,
            max_sequence_length=CONTEXT,
            drafter=Guesses(self.propose) if self.setup.drafts else None,
            reserve=admit_all if self.setup.admit_all else None,
            prefixes=scope_of(self.pages) if self.setup.prefixes else None,
        )

    def fault(self, span: Span) -> FerrumError | None:
        return NonFiniteLogits("nan") if self.random.random() < 0.003 else None

    def propose(self, sequence: Choice) -> tuple[int, ...]:
        expected = self.expected[sequence.request.request_id, sequence.choice].tokens
        guesses = expected[sequence.generated : sequence.generated + self.random.randrange(MAX_DRAFT + 1)]
        return tuple(token if self.random.random() < 0.8 else 1 for token in guesses)

    def arrive(self) -> None:
        pick = self.random
        length = pick.choice((1, 2, 5, pick.randrange(1, 45), pick.randrange(1, 60)))
        stops = tuple({pick.randrange(VOCABULARY) for _ in range(pick.choice((0, 1, 2)))})
        max_tokens = pick.choice((None, 0, 1, 4, 12, 25))
        params = SamplingParams(
            n=pick.choice((1, 1, 1, 2, 4)),
            temperature=pick.choice((0.0, 1.0)),
            max_tokens=max_tokens,
            min_tokens=pick.choice((0, 0, 4)) if max_tokens is None or max_tokens >= 4 else 0,
            prompt_logprobs=pick.choice((None, None, 1)),
            logprobs=pick.choice((None, 0)),
            stop_token_ids=stops[1:],
        )
        self.added += 1
        request = Request(
            f"r{self.added}",
            # Similar prompts, so that requests share pages.
            tuple((position * 7 + (pick.random() < 0.05)) % VOCABULARY for position in range(length)),
            params,
            seed=pick.randrange(5),
            stop_token_ids=frozenset(stops),
            eos_token_ids=stops[:1],
            priority=pick.randrange(3),
            deadline=self.clock + pick.randrange(1, 60) if pick.random() < 0.3 else None,
            arrival=self.clock,
            tenant=pick.choice("aaab"),
            boundaries=tuple(range(3, length, pick.choice((5, 11)))) if pick.random() < 0.5 else (),
            inputs=self.blocks(length) if self.setup.blocks else (),
        )
        if length > min(CONTEXT - (max_tokens != 0), self.pages.capacity_tokens):
            with pytest.raises((ContextOverflow, KvExhausted)):
                self.scheduler.add(request)
            return
        self.scheduler.add(request)
        self.requests[request.request_id] = request
        for choice in range(params.n):
            key = (request.request_id, choice)
            self.expected[key] = self.executor.model.follow(request, choice, self.context)
            self.live.add(key)
            self.events_of[key] = []

    def blocks(self, length: int) -> tuple[Inputs, ...]:
        """Return images at few places, so that requests share them; one may end the prompt."""
        pick = self.random
        longest = self.scheduler.live.limits.growth
        runs = [
            range(start, start + size)
            for start, size in ((0, 3), (6, 9), (17, min(longest, 13)), (30, 5))
            if pick.random() < 0.5
        ]
        found = [run for run in runs if run.stop <= length]
        if pick.random() < 0.2 and (not found or found[-1].stop < length):
            found.append(range(max(length - 3, found[-1].stop if found else 0), length))
        return tuple(Inputs(tuple(run), list(run), b"image %d" % len(run), run) for run in found)

    def step(self) -> None:
        """Run one iteration of an engine's loop."""
        waiting = len(self.submitted)
        plan = self.scheduler.plan()
        self.pages.check()
        if plan is not None:
            assert 0 < plan.batch.total_tokens <= self.setup.budget
            assert len(plan.sequences) <= self.scheduler.num_running <= self.setup.max_sequences
            self.ahead += any(CARRY in span.tokens for span in plan.batch.spans)
            broken = self.random.random() < 0.005
            self.submitted.append((plan, NonFiniteLogits("all") if broken else self.executor.submit(plan.batch)))
        else:
            assert waiting or self.executor.due or not self.scheduler.has_work, "a stall"
        if self.executor.due and self.random.random() < (0.1 if plan is not None else 0.5):
            self.executor.deliver()
        depth = 0 if plan is None else self.random.randint(0, self.setup.depth)
        while len(self.submitted) > depth:
            plan, step = self.submitted.pop(0)
            self.preemptions += sum(sequence.preemptions for sequence in plan.sequences)
            if isinstance(step, FerrumError):
                self.take(self.scheduler.fail(plan, step))
            else:
                self.accepted += sum(getattr(result, "accepted", 0) for result in step.output.results)
                self.take(self.scheduler.commit(plan, step.result()))
        self.pages.check()

    def take(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            key = (event.request_id, event.choice)
            assert key in self.live, "event of a choice that has ended"
            earlier = self.events_of[key]
            earlier.append(event)
            expected, request = self.expected[key], self.requests[event.request_id]
            tokens = tuple(token for each in earlier for token in each.token_ids)
            assert tokens == expected.tokens[: len(tokens)]
            assert event.logprobs is None or len(event.logprobs) == len(event.token_ids)
            assert (event.logprobs is None) == (request.params.logprobs is None or not event.token_ids)
            first = len(earlier) == 1 and (event.token_ids or event.finish_reason in WHOLE)
            assert event.prompt_logprobs == (expected.prompt_logprobs if first else None)
            if event.finish_reason is None:
                assert event.token_ids
                continue
            if event.finish_reason in WHOLE:
                assert tokens == expected.tokens
                assert (event.finish_reason, event.stop_reason) == (expected.finish, expected.stop_reason)
            assert (event.error is not None) == (event.finish_reason is FinishReason.ERROR)
            self.live.remove(key)
            self.ends[event.finish_reason] += 1
            del self.expected[key], self.events_of[key]


@pytest.mark.parametrize("name", SETUPS)
def test_invariants_hold_over_random_steps(name: str) -> None:
    run(name, 1_200)


@pytest.mark.soak
@pytest.mark.parametrize("name", SETUPS)
def test_invariants_hold_over_many_random_steps(name: str) -> None:
    run(name, 27_500)


def run(name: str, steps: int) -> None:
    fuzz = Fuzz(SETUPS[name], Random(name))
    for _ in range(steps):
        if fuzz.random.random() < 0.3 and len(fuzz.live) < 24:
            fuzz.arrive()
        fuzz.disturb()
        fuzz.step()
    for _ in range(2000):
        if not fuzz.scheduler.has_work:
            break
        fuzz.step()
    assert not fuzz.live and not fuzz.submitted
    assert fuzz.pages.free_slots == fuzz.setup.slots
    assert fuzz.pages.used == 0 and fuzz.pages.ids() == () and fuzz.pages.take_copies() == ()
    assert (fuzz.scheduler.num_running, fuzz.scheduler.num_waiting) == (0, 0)
    # The load covered every kind of end, preemptions and accepted drafts.
    assert all(count >= steps // 300 for count in fuzz.ends.values()), fuzz.ends
    assert fuzz.preemptions >= steps // 60
    assert (fuzz.accepted >= steps // 30) is fuzz.setup.drafts
    assert (fuzz.ahead >= steps // 30) is not fuzz.setup.drafts
    assert (fuzz.scheduler.prefix_counts.hit_tokens >= steps // 10) is fuzz.setup.prefixes
    assert (fuzz.scheduler.prefix_counts.restored_pages >= steps // 10) is fuzz.setup.swap
