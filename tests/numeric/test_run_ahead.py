"""Steps in flight: at every depth requests have the tokens, log-probabilities and finish reasons they have alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from queue import SimpleQueue
from random import Random

import pytest

import recurrent_model
from emulated_cuda import emulated_device
from fakes import Guesses, admit_all, scope_of
from ferrum.core.params import SamplingParams
from ferrum.core.rule_fields import HISTORY_RULES, switches
from ferrum.core.step import TokenLogprobs
from ferrum.core.types import FinishReason, Request
from ferrum.engine.engine import Engine
from ferrum.engine.messages import Abort, Events, Message
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.scheduler.sequence import Sequence as Choice
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from late_backend import late_backend
from native_twin import require_native
from random_requests import recipe
from reference_run import Alone, alone
from tiny import directory_of, find
from toy_backend import toy_backend

CONTEXT = 64
PAGE_SIZE = 4
PAGES = 20
KINDS = 40
DEPTHS = (0, 1, 2)
NEUTRAL = SamplingParams()


def load(model: str, pages: int, kernels: str = "native") -> LocalExecutor:
    """Load a model with a window, or one with recurrent layers next to attention."""
    if kernels == "native":
        require_native()
    options = {"page_size": PAGE_SIZE, "kv_capacity": pages * PAGE_SIZE, "max_sequence_length": CONTEXT}
    if model in recurrent_model.KINDS:
        return recurrent_model.load(model, kernels, run_ahead=max(DEPTHS), **options)
    directory = directory_of(find("qwen3-windows"))
    with {"toy": toy_backend, "late": late_backend, "cuda": emulated_device}.get(kernels, nullcontext)():
        kernels = kernels if kernels in ("native", "reference") else "auto"
        return load_executor(directory, kernels=kernels, dtype="bfloat16", **options)


@pytest.fixture(scope="module", params=["windows", "recurrent operations with attention"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def executor(model: str) -> Iterator[LocalExecutor]:
    with load(model, PAGES) as executor:
        yield executor


@cache
def quiet(model: str) -> LocalExecutor:
    return load(model, 4 * PAGES)


@cache
def request_of(kind: int, *, plain: bool) -> Request:
    """Return a request of one kind. Most kinds have penalties or bad words; plain ones need no token on the host.

    Kinds from `KINDS` on are those again, but greedy and without log-probabilities: a backend's own tokens.
    """
    request = recipe(kind % KINDS)
    if kind >= KINDS:
        params = request.params.but(temperature=0.0, logprobs=None, logit_bias=None, min_tokens=0, prompt_logprobs=None)
        request = replace(request, params=params)
    if not plain:
        return request
    off = {name: getattr(NEUTRAL, name) for name in switches(SamplingParams, HISTORY_RULES)}
    return replace(request, params=request.params.but(**off), bad_words=())


@cache
def alone_result(model: str, kind: int, choice: int, *, plain: bool) -> Alone:
    return alone(quiet(model), request_of(kind, plain=plain), choice, CONTEXT)


@dataclass
class Outcome:
    """What a client sees of one choice until it ends or the client leaves."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    finish: FinishReason | None = None
    stop_reason: int | None = None
    left: bool = False


@dataclass(frozen=True)
class Arrival:
    """A request of a schedule: when it arrives, its kind, and after how many tokens its choices are aborted."""

    step: int
    name: str
    kind: int
    plain: bool
    abort_after: int


class Schedule:
    """Requests and a scheduler, as functions of the schedule's number.

    Args:
        number: of the schedule.
        model: see `load`.
        greedy: all requests are greedy and plain.
    """

    def __init__(self, number: int, model: str, *, greedy: bool = False) -> None:
        pick = Random(number)
        self.number, self.model = number, model
        self.drafts = pick.random() < 0.3
        plain = pick.random() < 0.7
        self.arrivals = []
        for index in range(pick.randrange(2, 6)):
            kind = pick.randrange(KINDS)
            aborted = not self.drafts and pick.random() < 0.2
            after = pick.randrange(1, 5) if aborted else CONTEXT
            kind += KINDS * greedy
            self.arrivals.append(Arrival(pick.randrange(6), f"r{index}", kind, plain or greedy, after))
        self.policy = POLICIES[pick.choice(("fcfs", "priority", "fair"))]
        self.budget = pick.choice((6, 12, 40))
        self.sequences = pick.choice((2, 5, 8))
        self.shares = pick.random() < 0.5

    def scheduler(self, executor: LocalExecutor) -> Scheduler:
        return Scheduler(
            executor.lm.pages,
            policy=self.policy,
            max_tokens_per_step=max(self.budget, self.sequences),
            max_sequences=self.sequences,
            max_sequence_length=CONTEXT,
            drafter=Drafts(self) if self.drafts else None,
            reserve=admit_all,
            prefixes=scope_of(executor.lm.pages) if self.shares else None,
        )


class Drafts(Guesses):
    """A drafter for some requests of a schedule: right drafts, but for every fourth token."""

    only_predicted = True

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(self.propose)
        self.accepted = 0
        self._random = Random(schedule.number)
        self._arrivals = {each.name: each for each in schedule.arrivals}
        self._model = schedule.model

    def learn(self, sequence: Choice, drafted: int, accepted: int) -> None:
        super().learn(sequence, drafted, accepted)
        self.accepted += accepted

    def propose(self, sequence: Choice) -> tuple[int, ...]:
        arrival = self._arrivals[sequence.request.request_id]
        if not sequence.may_draft:
            return ()
        expected = alone_result(self._model, arrival.kind, sequence.choice, plain=arrival.plain)
        right = expected.tokens[sequence.generated :]
        return tuple(token if self._random.random() < 0.75 else 1 for token in right[: self._random.randrange(5)])


class Run:
    """One schedule at one depth."""

    def __init__(self, schedule: Schedule, depth: int, executor: LocalExecutor) -> None:
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        self._arrivals = {each.name: each for each in schedule.arrivals}
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        executor.run_ahead(depth)
        self.scheduler = schedule.scheduler(executor)
        self.engine = Engine(executor, self.scheduler, inbox=self._inbox, post=self._take, depth=depth)
        pages = executor.lm.pages
        step = 0
        while step < 6 or self.scheduler.has_work:
            for arrival in schedule.arrivals:
                if arrival.step == step:
                    self._send(arrival)
            self.engine.step()
            pages.check()
            step += 1
        while self.engine.step():
            pass
        assert pages.used == 0 and pages.ids() == ()

    def _send(self, arrival: Arrival) -> None:
        request = replace(
            request_of(arrival.kind, plain=arrival.plain),
            request_id=arrival.name,
            arrival=arrival.step,
            prediction=() if arrival.kind % 3 else (0,),
        )
        self.outcomes.update(((arrival.name, choice), Outcome()) for choice in range(request.params.n))
        self._inbox.put(request)

    def _take(self, events: Events) -> None:
        for event in events.events:
            outcome = self.outcomes[event.request_id, event.choice]
            assert outcome.finish is None, "an event of a finished choice"
            if outcome.left:  # a step in flight may still bring a token, or the end
                outcome.finish = event.finish_reason and FinishReason.ABORT
                continue
            outcome.tokens += event.token_ids
            outcome.logprobs += event.logprobs or ()
            if event.prompt_logprobs is not None:
                outcome.prompt_logprobs = event.prompt_logprobs
            outcome.finish, outcome.stop_reason = event.finish_reason, event.stop_reason
            if len(outcome.tokens) >= self._arrivals[event.request_id].abort_after and outcome.finish is None:
                outcome.left = True
                self._inbox.put(Abort(event.request_id, event.choice))


def check_alone(schedule: Schedule, run: Run) -> None:
    """Assert that every choice has the outcome it has alone, or its beginning if it was aborted."""
    for arrival in schedule.arrivals:
        for choice in range(request_of(arrival.kind, plain=arrival.plain).params.n):
            outcome = run.outcomes[arrival.name, choice]
            expected = alone_result(schedule.model, arrival.kind, choice, plain=arrival.plain)
            count = len(outcome.tokens)
            assert outcome.tokens == expected.tokens[:count] and outcome.logprobs == expected.logprobs[:count]
            if outcome.finish is not FinishReason.ABORT:
                assert (count, outcome.finish) == (len(expected.tokens), expected.finish)
                assert outcome.stop_reason == expected.stop_reason
                assert outcome.prompt_logprobs == expected.prompt_logprobs


@pytest.mark.parametrize("numbers", [range(20), pytest.param(range(20, 1000), marks=pytest.mark.soak)], ids=len)
def test_outcomes_do_not_depend_on_the_depth(executor: LocalExecutor, model: str, numbers: range) -> None:
    """The schedules have stops, aborts, preemptions, forks, shared prefixes and drafts."""
    ahead, seen = Counter[int](), Counter[str]()
    for number in numbers:
        schedule = Schedule(number, model)
        runs = [Run(schedule, depth, executor) for depth in DEPTHS]
        check_alone(schedule, runs[0])
        assert all(run.outcomes == runs[0].outcomes for run in runs), number
        for depth, run in zip(DEPTHS, runs, strict=True):
            ahead[depth] += run.engine.steps_ahead
            seen["preemptions"] += run.scheduler.preemptions
            seen["accepted"] += getattr(run.scheduler.drafter, "accepted", 0)
            seen.update(str(outcome.finish) for outcome in run.outcomes.values())
            seen["forks"] += any(choice for _, choice in run.outcomes)
    assert ahead[0] == 0 and min(ahead[1], ahead[2]) > 3 * len(numbers)
    least = min(seen[each] for each in ("preemptions", "accepted", "stop", "length", "abort", "forks"))
    assert least > len(numbers) // 2, seen


@pytest.mark.parametrize("greedy", [False, True], ids=["any", "greedy"])
@pytest.mark.parametrize(
    ("kernels", "schedules"),
    [("reference", 1), ("toy", 1), ("late", 3), pytest.param("cuda", 3, marks=pytest.mark.cuda)],
)
def test_each_backend_has_the_same_outcomes_at_every_depth(kernels: str, schedules: int, greedy: bool) -> None:
    """The late backend has the next step of greedy decodes before the tokens of the last one are collected."""
    with load("windows", PAGES, kernels) as executor:
        ahead = Counter[int]()
        for number in range(schedules):
            schedule = Schedule(number, "windows", greedy=greedy)
            for depth in DEPTHS:
                before = getattr(executor.lm.kernels, "ahead", 0)
                check_alone(schedule, Run(schedule, depth, executor))
                ahead[depth] += getattr(executor.lm.kernels, "ahead", 0) - before
        started = kernels == "late" and greedy
        assert [ahead[depth] > 20 for depth in DEPTHS] == [False, started, started] and not ahead[0], ahead
