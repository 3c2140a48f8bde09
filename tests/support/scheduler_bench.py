"""A scheduler on the fake executor, and checks of its events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fakes import FakeExecutor, Guesses, admit_all, scope_of
from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.cache.state_slots import StateSlots
from ferrum.core.errors import FerrumError
from ferrum.core.params import SamplingParams
from ferrum.core.step import Span
from ferrum.core.types import Request, TokenEvent
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.sequence import Sequence as Choice
from ferrum.scheduler.step_plan import StepCosts, StepPlan

CONTEXT = 64


class Bench:
    """A scheduler, a fake executor, and the events so far."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        window: int | None = None,
        slots: int = 0,
        policy: str = "fcfs",
        budget: int = 16,
        max_sequences: int = 8,
        context: int = CONTEXT,
        propose: Callable[[Choice], tuple[int, ...]] | None = None,
        fault: Callable[[Span], FerrumError | None] | None = None,
        prefixes: bool = False,
        overcommitted: bool = False,
        costs: StepCosts | None = None,
        decode_seconds: float | None = None,
    ) -> None:
        groups = [PageGroup("main", num_pages, 4, window)]
        self.pages = PageTable(groups, max_draft=4, states=StateSlots(slots) if slots else None)
        self.executor = FakeExecutor(self.pages, fault=fault)
        self.scheduler = Scheduler(
            self.pages,
            policy=POLICIES[policy],
            max_tokens_per_step=budget,
            max_sequences=max_sequences,
            max_sequence_length=context,
            drafter=None if propose is None else Guesses(propose),
            reserve=admit_all if overcommitted else None,
            prefixes=scope_of(self.pages) if prefixes else None,
            costs=costs,
            decode_seconds=decode_seconds,
        )
        self.events: dict[tuple[str, int], list[TokenEvent]] = defaultdict(list)

    def add(self, request_id: str, length: int, *, seed: int = 0, **options: Any) -> Request:
        prompt = tuple((seed * 31 + position * 7) % 97 for position in range(length))
        return self.add_prompt(request_id, prompt, seed=seed, **options)

    def add_prompt(self, request_id: str, prompt: tuple[int, ...], *, seed: int = 0, **options: Any) -> Request:
        fields = {name: options.pop(name) for name in tuple(options) if name in Request.__dataclass_fields__}
        request = Request(request_id, prompt, SamplingParams(**options), seed, **fields)
        self.scheduler.add(request)
        return request

    def take(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            assert all(earlier.finish_reason is None for earlier in self.events[event.request_id, event.choice])
            self.events[event.request_id, event.choice].append(event)

    def plan(self) -> StepPlan:
        plan = self.scheduler.plan()
        assert plan is not None
        return plan

    def commit(self, plan: StepPlan) -> None:
        self.take(self.scheduler.commit(plan, self.executor.submit(plan.batch).result()))
        self.pages.check()

    def step(self) -> tuple[Span, ...]:
        plan = self.plan()
        self.commit(plan)
        return plan.batch.spans

    def run(self, most: int = 1000) -> list[tuple[Span, ...]]:
        steps = []
        while self.scheduler.has_work:
            assert len(steps) < most, "no progress"
            steps.append(self.step())
        assert self.pages.used == 0 and self.pages.ids() == ()
        assert self.pages.states is None or self.pages.states.counts()["used_slots"] == 0
        return steps

    def tokens(self, request_id: str, choice: int = 0) -> tuple[int, ...]:
        return tuple(token for event in self.events[request_id, choice] for token in event.token_ids)

    def end(self, request_id: str, choice: int = 0) -> TokenEvent:
        return self.events[request_id, choice][-1]

    def agrees(self, *requests: Request, context: int = CONTEXT) -> None:
        for request in requests:
            for choice in range(request.params.n):
                followed = self.executor.model.follow(request, choice, context)
                first, last = self.events[request.request_id, choice][0], self.end(request.request_id, choice)
                assert self.tokens(request.request_id, choice) == followed.tokens
                assert (last.finish_reason, last.stop_reason) == (followed.finish, followed.stop_reason)
                assert first.prompt_logprobs == followed.prompt_logprobs


def lengths(spans: Sequence[Span]) -> dict[str, int]:
    return {span.cache_id: len(span.tokens) for span in spans}


def stop_at(bench: Bench, index: int, **options: Any) -> Request:
    """Add a request of 4 prompt tokens whose stop token would be generated at `index`."""
    probe = Request("probe", tuple(position * 7 % 97 for position in range(4)), SamplingParams(max_tokens=30), 0)
    token = bench.executor.model.follow(probe, 0, CONTEXT).tokens[index]
    return bench.add("a", 4, max_tokens=30, stop_token_ids=frozenset({token}), **options)


def oracle(bench: Bench, wrong: int) -> Callable[[Choice], tuple[int, ...]]:
    """Return a drafter of the next six tokens, all correct except the one at index `wrong`."""

    def propose(sequence: Choice) -> tuple[int, ...]:
        free = replace(sequence.request, stop_token_ids=frozenset(), eos_token_ids=())
        free = replace(free, params=replace(free.params, max_tokens=None))
        followed = bench.executor.model.follow(free, sequence.choice, 200).tokens
        tokens = followed[sequence.generated : sequence.generated + 6]
        return tuple((token + 1) % 97 if index == wrong else token for index, token in enumerate(tokens))

    return propose
