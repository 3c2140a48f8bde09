"""Faults at every depth: the same outcomes on each backend, and no page with a row of a failed step is ever found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from test_faults import Fault, FaultyKernels, FaultyProgram

from fakes import scope_of
from ferrum.cache.pool import PageHash
from ferrum.core.errors import FerrumError, NonFiniteLogits, StepError
from ferrum.core.params import SamplingParams
from ferrum.core.step import CARRY, Outcome, Sampling, Span, SpanResult, StepBatch
from ferrum.core.types import Request
from ferrum.engine.engine import Engine
from ferrum.engine.messages import Events, Message
from ferrum.kernels.cpu.native_kernels import NativeProgram
from ferrum.kernels.interface import NetworkOutput, StepTables
from ferrum.scheduler.queues import POLICIES
from ferrum.scheduler.scheduler import Scheduler
from ferrum.verbs.load_executor import LocalExecutor, load_executor
from late_backend import late_backend
from native_twin import require_native
from tiny import directory_of, find, tokens_of
from toy_backend import ToyKernels, toy_backend

CASE = find("qwen3-windows")
SIZE = 4
PROMPT = 30
SITE = 3
"""An operation before the keys of the first layer are stored."""
BACKENDS = ("native", "reference", "toy", "late")
DEPTHS = (0, 1, 2)


class FaultAt(Fault):
    """A fault in passes with a row at one position, which only one sequence reaches.

    Attributes:
        position: None for no fault.
        times: number of passes with a fault that are left.
    """

    position: int | None = None
    times = 1000

    def begin(self, tables: StepTables) -> None:
        self.calls = 0
        self.tables = tables
        self.spans = np.add.reduceat(tables.positions == self.position, tables.span_rows[:-1]) > 0
        if self.spans.any():
            self.times -= 1
            self.spans &= self.times >= 0
        self.rows = np.repeat(self.spans, np.diff(tables.span_rows))


@contextmanager
def loaded(backend: str, fault: FaultAt) -> Iterator[LocalExecutor]:
    """Load the model with a fault between the operations of the backend."""
    if backend == "native":
        require_native()
    kernels = backend if backend in ("native", "reference") else "auto"
    with {"toy": toy_backend, "late": late_backend}.get(backend, nullcontext)():
        executor = load_executor(directory_of(CASE), kernels=kernels, page_size=SIZE, kv_capacity=64 * SIZE)
    with executor:
        lm = executor.lm
        if isinstance(lm.replay, NativeProgram):
            lm.replay = FaultyProgram(lm.replay, fault)  # type: ignore[assignment]
        elif isinstance(lm.kernels, ToyKernels):
            lm.kernels._inner = FaultyKernels(lm.kernels._inner, fault)  # type: ignore[assignment]
        else:
            lm.kernels = FaultyKernels(lm.kernels, fault)  # type: ignore[assignment]
        yield executor


def request(name: str, seed: int, prompt: int, tokens: int, temperature: float) -> Request:
    params = SamplingParams(temperature=temperature, max_tokens=tokens)
    return Request(name, tuple(tokens_of(CASE, prompt, seed)), params, seed=seed)


class Run:
    """Requests through an engine at one depth.

    Attributes:
        outcomes: tokens and error of each request.
        delays: for each page, how many steps were submitted between the one that filled it and its publication.
    """

    def __init__(self, executor: LocalExecutor, depth: int, *requests: Request) -> None:
        self.outcomes: dict[str, tuple[tuple[int, ...], Exception | None]] = {
            each.request_id: ((), None) for each in requests
        }
        self.delays: dict[PageHash, int] = {}
        self._pages, self._submit, self._steps = executor.lm.pages, executor.submit, 0
        self._filled: dict[tuple[str, int], int] = {}
        executor.run_ahead(depth)
        inbox = SimpleQueue[Message]()
        scheduler = Scheduler(
            self._pages,
            policy=POLICIES["fcfs"],
            max_tokens_per_step=12,
            max_sequences=4,
            max_sequence_length=64,
            prefixes=scope_of(self._pages),
        )
        engine = Engine(executor, scheduler, inbox=inbox, post=self._take, depth=depth)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(executor, "submit", self._submitted)
            patch.setattr(self._pages, "publish", self._published)
            for each in requests:
                inbox.put(each)
            while engine.step() or scheduler.has_work:
                self._pages.check()
        assert self._pages.used == 0

    def published(self, executor: LocalExecutor) -> dict[tuple[str, PageHash], bytes]:
        """Return the content of each full page that can be found."""
        found = {}
        for group, pool in zip(self._pages.groups, self._pages._room.pools, strict=True):
            for page_hash, hashed in pool.hashes._published.items():
                if not hashed.partial:
                    found[group.name, page_hash] = executor.lm.pool.read_page(group.name, hashed.page).tobytes()
        return found

    def _take(self, events: Events) -> None:
        for event in events.events:
            tokens, _ = self.outcomes[event.request_id]
            self.outcomes[event.request_id] = (*tokens, *event.token_ids), event.error

    def _submitted(self, batch: StepBatch) -> Any:
        self._steps += 1
        for span in batch.spans:
            self._filled.update(((span.cache_id, position), self._steps) for position in range(span.start, span.end))
        return self._submit(batch)

    def _published(self, cache_id: str) -> None:
        table = self._pages
        hashes = table._rows[cache_id].hashes
        type(table).publish(table, cache_id)
        for index, page_hash in enumerate(hashes._page_hashes[: hashes._assigned]):
            filled = self._filled.get((cache_id, index * SIZE + SIZE - 1))
            if filled is not None:
                self.delays.setdefault(page_hash, self._steps - filled)


def hashes_of(executor: LocalExecutor, request: Request, tokens: tuple[int, ...]) -> list[PageHash]:
    """Return the hashes of the full pages of a request and its tokens."""
    scope, hashes = scope_of(executor.lm.pages), list[PageHash]()
    root = scope.root(tenant=request.tenant, salt=request.salt)
    scope.extend(hashes, root, (*request.prompt, *tokens))
    return hashes


@pytest.mark.parametrize(
    ("backend", "kind", "temperature"),
    [*product(BACKENDS, ("raising",), (0.0,)), *product(BACKENDS, ("nan",), (0.8,)), ("late", "nan", 0.0)],
)
def test_rows_of_a_failed_step_are_never_published(backend: str, kind: str, temperature: float) -> None:
    """The fault is in a chunk of the prompt, in a page's first row, or in its last row."""
    fault = FaultAt(kind)
    fault.site = SITE
    guilty = request("guilty", 1, PROMPT, 16, temperature)
    requests = guilty, request("a", 2, 9, 9, temperature), request("b", 3, 6, 12, temperature)
    with loaded(backend, fault) as executor:
        clean = Run(executor, 0, *requests)
        right, pages = clean.outcomes, clean.published(executor)
        assert all(error is None for _, error in right.values())
        hashes = hashes_of(executor, guilty, right["guilty"][0])
        full = executor.lm.pages.groups[0].name
        assert {(full, each) for each in hashes[: (PROMPT + 15) // SIZE]} <= set(pages)
        for depth in DEPTHS:
            for position in (PROMPT - 8, 32, 39):
                executor.run_ahead(0)
                executor.reset()
                fault.position = position
                run = Run(executor, depth, *requests)
                fault.position = None
                tokens, error = run.outcomes.pop("guilty")
                assert isinstance(error, NonFiniteLogits | StepError), (depth, position)
                assert tokens == right["guilty"][0][: max(0, position - PROMPT + 1)], (depth, position)
                assert run.outcomes == {name: right[name] for name in "ab"}, (depth, position)
                found = run.published(executor)
                assert all(pages[each] == content for each, content in found.items()), (depth, position)
                last = position // SIZE if position >= PROMPT else 0
                assert {each for name, each in found if name == full and each in hashes} == set(hashes[:last])


@pytest.mark.parametrize("backend", BACKENDS)
def test_pages_are_published_as_many_steps_later_as_are_in_flight(backend: str) -> None:
    with loaded(backend, FaultAt("nan")) as executor:
        for depth in DEPTHS:
            executor.run_ahead(0)
            executor.reset()
            one = request("one", 1, 6, 26, 0.0)
            run = Run(executor, depth, one)
            decoded = hashes_of(executor, one, run.outcomes["one"][0])[1:7]
            assert [run.delays[each] for each in decoded] == [depth] * 6


LENGTHS = {"a": 5, "guilty": 20}
STEPS = 8


def spans_of(step: int, known: list[list[int]] | None = None) -> tuple[Span, ...]:
    """Return the spans of a step: prompts in the first one, then known tokens, or those of the step before."""
    spans = []
    for index, (name, length) in enumerate(LENGTHS.items()):
        start = length + step - 1 if step else 0
        carried = CARRY if known is None else known[step - 1][index]
        tokens = (carried,) if step else tuple(tokens_of(CASE, length, index))
        spans.append(Span(name, start, tokens, sampling=SAMPLINGS[name]))
    return tuple(spans)


SAMPLINGS = {name: Sampling(SamplingParams(temperature=0.0), 0, length, []) for name, length in LENGTHS.items()}


def decoded(executor: LocalExecutor, depth: int, known: list[list[int]] | None = None) -> list[tuple[Outcome, ...]]:
    """Submit some steps as a client that does not wait for tokens, and return their outcomes."""
    executor.run_ahead(0)
    executor.reset()
    executor.run_ahead(depth)
    pending = [executor.submit(StepBatch(spans_of(step, known))) for step in range(STEPS)]
    return [each.result().results for each in pending]


def tokens_in(outcomes: list[tuple[Outcome, ...]]) -> list[list[int]]:
    """Return the last token of each span of each step, all of which have succeeded."""
    assert all(isinstance(each, SpanResult) for results in outcomes for each in results)
    return [[result.tokens[-1] for result in results] for results in outcomes]


@contextmanager
def faulty(backend: str, kind: str) -> Iterator[tuple[LocalExecutor, FaultAt, list[tuple[Outcome, ...]]]]:
    """Load a model with a fault that is not set yet; also give what it decodes without one."""
    fault = FaultAt(kind)
    fault.site = SITE
    with loaded(backend, fault) as executor:
        yield executor, fault, decoded(executor, 0)


@pytest.mark.parametrize("kind", ["raising", "nan"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_failed_sequence_stays_as_it_was_and_goes_on_later(backend: str, kind: str) -> None:
    with faulty(backend, kind) as (executor, fault, clean):
        for depth in DEPTHS:
            fault.position = 23
            outcomes = decoded(executor, depth)
            fault.position = None
            assert [first for first, _ in outcomes] == [first for first, _ in clean]
            guilty = [second for _, second in outcomes]
            assert guilty[:4] == [second for _, second in clean[:4]]
            assert all(isinstance(each, FerrumError) for each in guilty[4:])
            assert executor.lm.pages.length("guilty") == 23
            again = Span("guilty", 23, clean[3][1].tokens, sampling=SAMPLINGS["guilty"])
            assert executor.submit(StepBatch((again,))).result().results == (clean[4][1],)


@pytest.mark.parametrize("kind", ["raising", "nan"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_that_passes_changes_nothing(backend: str, kind: str) -> None:
    """The step is run again; what a backend that defers has computed on from it meanwhile is thrown away."""
    with faulty(backend, kind) as (executor, fault, clean):
        for depth in DEPTHS:
            for fault.position in (22, 24):
                fault.times = 1
                assert decoded(executor, depth, None if depth else tokens_in(clean)) == clean and fault.times < 1


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_that_could_not_be_submitted_runs_before_the_one_after_it(depth: int) -> None:
    with loaded("late", FaultAt("nan")) as executor:
        clean = decoded(executor, 0)
        kernels, calls = executor.lm.kernels, 0
        submit = kernels.submit

        def failing(tables: StepTables) -> NetworkOutput:
            nonlocal calls
            calls += 1
            if calls == 4:
                raise ZeroDivisionError("injected")
            return submit(tables)

        kernels.submit = failing
        before = kernels.ahead
        assert decoded(executor, depth, tokens_in(clean)) == clean and calls > STEPS and kernels.ahead > before
