"""The engine's loop, one iteration at a time, in the test's thread."""

from __future__ import annotations

import inspect
import threading
from queue import SimpleQueue

import pytest

from engine_fakes import CRASH, POISON, FakeRecipe, ServedFake, expected, greedy, input_processor
from ferrum.client.input_processor import RequestOptions
from ferrum.core.errors import NonFiniteLogits, StepError
from ferrum.core.params import SamplingParams
from ferrum.core.step import StepBatch, StepOutput
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.engine.engine import Engine
from ferrum.engine.messages import Abort, Message, Shutdown


class Bench:
    """An engine with its inbox, clock and posted reports."""

    def __init__(self, recipe: FakeRecipe | None = None, *, depth: int = 0) -> None:
        built = (FakeRecipe() if recipe is None else recipe)()
        assert isinstance(built.executor, ServedFake)
        self.executor, self.scheduler = built.executor, built.scheduler
        self.executor.owner = "test"
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.posts: list[tuple[TokenEvent, ...]] = []
        self.now = 100.0
        self.engine = Engine(
            self.executor,
            self.scheduler,
            inbox=self.inbox,
            post=lambda news: self.posts.append(news.events),
            depth=depth,
            clock=lambda: self.now,
        )

    def send(self, prompt: list[int], params: SamplingParams, **options: object) -> Request:
        request = input_processor().process(prompt, params, RequestOptions(**options))  # type: ignore[arg-type]
        self.inbox.put(request)
        return request

    def finish(self) -> None:
        """Step until every request has ended, and check that all pages are free."""
        while self.engine.step() or self.scheduler.has_work:
            self.executor.pages.check()
        assert self.executor.pages.used == 0

    def tokens(self, request: Request, choice: int = 0) -> tuple[int, ...]:
        return tuple(token for event in self.events(request, choice) for token in event.token_ids)

    def events(self, request: Request, choice: int = 0) -> list[TokenEvent]:
        every = [event for post in self.posts for event in post]
        return [event for event in every if (event.request_id, event.choice) == (request.request_id, choice)]

    def ends(self, request: Request, choice: int = 0) -> list[FinishReason]:
        return [event.finish_reason for event in self.events(request, choice) if event.finish_reason is not None]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_every_request_gets_its_tokens_and_one_finish_reason_at_any_depth(depth: int) -> None:
    bench = Bench(depth=depth)
    requests = [bench.send([7 + i] * (1 + 9 * i), greedy(5 + i, n=1 + i % 3)) for i in range(12)]
    bench.finish()
    for request in requests:
        for choice in range(request.params.n):
            assert bench.tokens(request, choice) == expected(request, choice)
            assert len(bench.ends(request, choice)) == 1


def test_a_step_posts_once() -> None:
    bench = Bench()
    for i in range(6):
        bench.send([9, i], greedy(4, ignore_eos=True))
    bench.finish()
    assert len(bench.posts) == len(bench.executor.batches)
    assert all(len({event.request_id for event in post}) == 6 for post in bench.posts)


def test_with_depth_a_step_is_submitted_before_the_last_one_is_committed() -> None:
    bench = Bench(depth=1)
    bench.send([1] * 200, greedy(1))
    assert bench.engine.step()
    first = len(bench.posts), len(bench.executor.batches)
    bench.send([2], greedy(1))
    bench.engine.step()
    assert first == (0, 1) and len(bench.executor.batches) == 2


def test_a_poisoned_span_ends_its_request_only() -> None:
    bench = Bench()
    good, bad = bench.send([1, 2, 3], greedy()), bench.send([POISON, 2, 3], greedy())
    bench.finish()
    assert bench.tokens(good) == expected(good)
    [end] = bench.events(bad)
    assert end.finish_reason is FinishReason.ERROR and isinstance(end.error, NonFiniteLogits)


def test_a_step_that_raises_ends_its_requests_and_not_the_loop() -> None:
    bench = Bench()
    together, crash = bench.send([1, 2], greedy()), bench.send([CRASH], greedy())
    bench.engine.step()
    later = bench.send([3, 4], greedy())
    bench.finish()
    for request in (together, crash):
        [end] = bench.events(request)
        assert isinstance(end.error, StepError) and "ZeroDivisionError" in str(end.error)
    assert bench.tokens(later) == expected(later)


def test_a_result_that_raises_ends_its_requests_and_not_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late:
        def result(self) -> StepOutput:
            raise MemoryError("late")

    bench = Bench()
    request = bench.send([1, 2], greedy())

    def submit(batch: StepBatch) -> Late:
        return Late()

    monkeypatch.setattr(bench.executor, "submit", submit)
    bench.finish()
    [end] = bench.events(request)
    assert isinstance(end.error, StepError)


def test_an_abort_frees_the_pages_within_an_iteration() -> None:
    bench = Bench()
    request, other = bench.send([1] * 40, greedy(1000, n=2, ignore_eos=True)), bench.send([2], greedy(3))
    for _ in range(6):
        bench.engine.step()
    bench.inbox.put(Abort(request.request_id, 1))
    bench.engine.step()
    assert (bench.ends(request, 0), bench.ends(request, 1)) == ([], [FinishReason.ABORT])
    bench.inbox.put(Abort(request.request_id))
    bench.inbox.put(Abort("nobody"))
    bench.engine.step()
    assert bench.ends(request) == [FinishReason.ABORT]
    bench.finish()
    assert bench.tokens(other) == expected(other)


def test_deadlines_end_running_and_waiting_requests() -> None:
    bench = Bench(FakeRecipe(max_sequences=1))
    running = bench.send([1], greedy(1000, ignore_eos=True), deadline=5.0)
    waiting = bench.send([2], greedy(), deadline=5.0)
    unhurried = bench.send([3], greedy())
    bench.engine.step()
    bench.now += 5.0
    bench.finish()
    assert bench.ends(running) == bench.ends(waiting) == [FinishReason.DEADLINE]
    assert bench.tokens(unhurried) == expected(unhurried)


@pytest.mark.contract("5.a prompt that is too long is refused")
def test_a_request_that_the_scheduler_refuses_ends_with_its_error() -> None:
    bench = Bench(FakeRecipe(num_pages=2, page_size=8))
    request = bench.send([1] * 20, greedy(n=2))
    bench.engine.step()
    for choice in range(2):
        [end] = bench.events(request, choice)
        assert end.finish_reason is FinishReason.ERROR and end.error is not None


def test_shutdown_ends_live_requests_and_then_the_loop() -> None:
    bench = Bench()
    requests = [bench.send([5 + i], greedy(1000, ignore_eos=True)) for i in range(20)]
    bench.engine.step()
    bench.inbox.put(Shutdown())
    bench.engine.run()
    assert [bench.ends(request) for request in requests] == [[FinishReason.ABORT]] * 20
    assert bench.executor.pages.used == 0


def test_an_idle_loop_sleeps_until_a_message_arrives() -> None:
    bench = Bench()
    plans = []
    plan = bench.scheduler.plan

    def counted() -> object:
        plans.append(None)
        return plan()

    bench.scheduler.plan = counted  # type: ignore[method-assign, assignment]
    thread = threading.Thread(target=bench.engine.run)
    thread.start()
    request = bench.send([1], greedy(3, ignore_eos=True))
    while not bench.ends(request):
        thread.join(0.001)
    thread.join(0.2)  # idle: it neither ends nor plans repeatedly
    assert thread.is_alive() and len(plans) <= 6
    bench.inbox.put(Shutdown())
    thread.join()


def test_deadlines_are_met_while_nothing_can_be_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(bench.scheduler, "plan", lambda: None)
    request = bench.send([1], greedy(), deadline=5.0)
    thread = threading.Thread(target=bench.engine.run)
    thread.start()
    bench.now += 5.0
    while not bench.posts:
        thread.join(0.001)
    bench.inbox.put(Shutdown())
    thread.join()
    assert bench.ends(request) == [FinishReason.DEADLINE]


def test_an_iteration_of_the_loop_fits_on_a_screen() -> None:
    assert len(inspect.getsource(Engine.step).splitlines()) < 25
