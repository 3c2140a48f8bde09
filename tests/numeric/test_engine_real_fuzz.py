"""Random steps of a real model per kernel set: requests have the bits that they have alone.

Like `fuzz/test_scheduler_fuzz.py`, with numerics: after every step the page table is consistent, every choice ends in
exactly one terminal event, and all pages are free at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random

import pytest

from fakes import Guesses, admit_all, scope_of
from ferrum.core.errors import KvExhausted
from ferrum.core.params import SamplingParams
from ferrum.core.step import Span, SpanResult, StepBatch, TokenLogprobs, Want
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.sequence import Sequence as Choice
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from native_twin import require_native
from random_load import RandomLoad
from random_requests import recipe
from reference_run import Alone, alone
from tiny import directory_of, find

MODEL = "qwen3-windows"  # one layer sees everything, the others nine tokens
CONTEXT = 64
PAGE_SIZE = 4
PAGES = 24
MAX_SEQUENCES = 8
BUDGET = 24
STEPS = {"reference": 200, "native": 500}
MANY = 5000
KINDS = 48
WHOLE = {FinishReason.STOP, FinishReason.LENGTH}


@dataclass(frozen=True)
class House:
    """The kernels and the scheduling policy."""

    kernels: str
    dtype: str
    policy: str
    prefixes: bool = True

    def load(self, **options: int) -> LocalExecutor:
        named = {"kernels": self.kernels, "dtype": self.dtype, "max_sequence_length": CONTEXT}
        return load_executor(directory_of(find(MODEL)), **named, **options)


HOUSES = (
    House("reference", "float32", "fcfs", prefixes=False),
    House("reference", "bfloat16", "priority"),
    House("native", "float32", "priority"),
    House("native", "bfloat16", "fcfs"),
)


@cache
def quiet_executor(house: House) -> LocalExecutor:
    """Return an executor for one request at a time, with large pages."""
    return house.load(kv_capacity=256)


@cache
def alone_result(house: House, kind: int, choice: int) -> Alone:
    return alone(quiet_executor(house), recipe(kind), choice, CONTEXT)


@dataclass
class Load(RandomLoad):
    """A scheduler and a real executor under random load, with the expected results."""

    house: House
    random: Random
    clock: float = 0.0
    added: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    tokens: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    logprobs: dict[tuple[str, int], tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    live: set[tuple[str, int]] = field(default_factory=set)
    ends: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))
    preemptions: int = 0
    accepted: int = 0
    rejected: int = 0

    def __post_init__(self) -> None:
        # Fewer rows a pass than tokens a step: some steps take two passes.
        self.executor = self.house.load(page_size=PAGE_SIZE, kv_capacity=PAGES * PAGE_SIZE, max_rows=16)
        self.pages = self.executor.lm.pages
        self.scheduler = Scheduler(
            self.pages,
            policy=POLICIES[self.house.policy],
            max_tokens_per_step=BUDGET,
            max_sequences=MAX_SEQUENCES,
            max_sequence_length=CONTEXT,
            drafter=Guesses(self.propose),
            reserve=admit_all,
            prefixes=scope_of(self.pages) if self.house.prefixes else None,
        )

    def propose(self, sequence: Choice) -> tuple[int, ...]:
        result = alone_result(self.house, self.kinds[sequence.request.request_id], sequence.choice)
        right = result.tokens[sequence.generated :]
        count = self.random.randrange(9)
        return tuple(token if self.random.random() < 0.8 else 1 for token in right[:count])

    def arrive(self) -> None:
        kind = self.random.randrange(KINDS)
        self.added += 1
        model = recipe(kind)
        request = Request(
            f"r{self.added}",
            model.prompt,
            model.params,
            model.seed,
            model.stop_token_ids,
            model.eos_token_ids,
            model.bad_words,
            model.priority,
            deadline=self.clock + self.random.randrange(1, 15) if self.random.random() < 0.2 else None,
            arrival=self.clock,
        )
        self.scheduler.add(request)
        self.kinds[request.request_id] = kind
        for choice in range(request.params.n):
            key = (request.request_id, choice)
            self.live.add(key)
            self.tokens[key], self.logprobs[key] = (), ()

    def step(self) -> None:
        plan = self.scheduler.plan()
        self.pages.check()
        if plan is None:
            assert not self.scheduler.has_work, "a stall"
            return
        output = self.executor.submit(plan.batch).result()
        self.pages.check()
        self.preemptions += sum(sequence.preemptions for sequence in plan.sequences)
        for span, result in zip(plan.batch.spans, output.results, strict=True):
            assert isinstance(result, SpanResult), result
            self.accepted += result.accepted
            self.rejected += span.drafts - result.accepted
        self.take(self.scheduler.commit(plan, output))
        self.pages.check()

    def take(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            key = (event.request_id, event.choice)
            assert key in self.live, "an event of a finished choice"
            first = not self.tokens[key]
            self.tokens[key] += event.token_ids
            self.logprobs[key] += event.logprobs or ()
            expected = alone_result(self.house, self.kinds[event.request_id], event.choice)
            count = len(self.tokens[key])
            assert self.tokens[key] == expected.tokens[:count]
            assert self.logprobs[key] == expected.logprobs[:count], "equal floats are equal bits"
            if first and (event.token_ids or event.finish_reason in WHOLE):
                assert event.prompt_logprobs == expected.prompt_logprobs
            if event.finish_reason is None:
                continue
            if event.finish_reason in WHOLE:
                assert (count, event.finish_reason) == (len(expected.tokens), expected.finish)
                assert event.stop_reason == expected.stop_reason
            assert (event.error is not None) == (event.finish_reason is FinishReason.ERROR)
            self.live.remove(key)
            self.ends[event.finish_reason] += 1


@pytest.mark.parametrize("house", HOUSES, ids=lambda house: f"{house.kernels}-{house.dtype}-{house.policy}")
def test_random_steps(house: House) -> None:
    run(house, STEPS[house.kernels])


@pytest.mark.soak
@pytest.mark.parametrize("house", HOUSES, ids=lambda house: f"{house.kernels}-{house.dtype}-{house.policy}")
def test_many_random_steps(house: House) -> None:
    run(house, MANY)


def run(house: House, steps: int) -> None:
    if house.kernels == "native":
        require_native()
    load = Load(house, Random(house.policy))
    for _ in range(steps):
        if load.random.random() < 0.5 and len(load.live) < 24:
            load.arrive()
        load.disturb()
        load.step()
    while load.scheduler.has_work:
        load.step()
    assert not load.live
    assert load.pages.used == 0 and load.pages.ids() == () and load.pages.take_copies() == ()
    # The load covered every case.
    kinds = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.ABORT, FinishReason.DEADLINE)
    assert all(load.ends[kind] >= steps // 100 for kind in kinds), load.ends
    assert load.preemptions >= steps // 50 and load.accepted >= steps // 10 and load.rejected >= steps // 25
    assert (load.scheduler.prefix_counts.hit_tokens >= 2 * steps // 5) is house.prefixes


def test_requests_fail_when_other_owners_hold_the_pages() -> None:
    load = Load(HOUSES[0], Random("background_sequences"))
    strangers = [Span(f"stranger{i}", 0, tuple(range(46)), Want.NONE) for i in range(2)]
    load.executor.submit(StepBatch(tuple(strangers))).result()
    request = Request("r", tuple(range(30)), SamplingParams(max_tokens=2), seed=1)
    load.scheduler.add(request)
    assert load.scheduler.plan() is None
    (event,) = load.scheduler.expire(0.0)
    assert event.finish_reason is FinishReason.ERROR and isinstance(event.error, KvExhausted)
    for span in strangers:
        load.pages.release(span.cache_id)
    assert load.pages.used == 0 and not load.scheduler.has_work
