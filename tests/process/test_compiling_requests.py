"""Requests whose grammars are being compiled: each ends in exactly one event per choice, and the engine goes on."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue

import pytest

from engine_fakes import FakeRecipe, ServedFake, expected, greedy, input_processor
from ferrum.client.input_processor import RequestOptions
from ferrum.core.errors import FerrumError, RequestError
from ferrum.core.guidance import Grammar, Guidance
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.engine.engine import Engine
from ferrum.engine.messages import Abort, Message, Shutdown
from ferrum.scheduler.guides import Guides, StartGuide
from guides_kit import OpenGuide

LIMITED = Guidance(grammar=Grammar(source="any"))
Done = Callable[[StartGuide | FerrumError], None]


class Compiler(Guides):
    """Guides that are compiled when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[Done] = []
        self.cancelled: list[Done] = []
        self.started: list[OpenGuide] = []

    @property
    def open(self) -> bool:
        """Whether a guide has not been closed."""
        return not all(each.closed for each in self.started)

    def start(self) -> OpenGuide:
        self.started.append(OpenGuide())
        return self.started[-1]

    def compile(self, guidance: Guidance, ends: tuple[int, ...], done: Done) -> Callable[[], object]:
        self.waiting.append(done)
        return lambda: self.cancelled.append(done)

    def finish(self, error: FerrumError | None = None) -> None:
        """Report the oldest one as compiled, or as failed."""
        self.waiting.pop(0)(self.start if error is None else error)

    def close(self) -> None:
        pass


class Bench:
    """An engine, one iteration at a time."""

    def __init__(self, guides: Guides | None) -> None:
        built = FakeRecipe()()
        assert isinstance(built.executor, ServedFake)
        built.executor.owner = "test"
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.events: list[TokenEvent] = []
        self.now = 100.0
        self.scheduler = built.scheduler
        self.engine = Engine(
            built.executor,
            built.scheduler,
            inbox=self.inbox,
            post=lambda report: self.events.extend(report.events),
            guides=guides,
            clock=lambda: self.now,
        )

    def send(self, guidance: Guidance | None = LIMITED, n: int = 1, **options: object) -> Request:
        options = {"guidance": guidance, **options}
        request = input_processor().process([5, 6, 7], greedy(9, n=n), RequestOptions(**options))  # type: ignore[arg-type]
        self.inbox.put(request)
        return request

    def run(self) -> None:
        self.engine.step()
        while self.scheduler.has_work:
            self.engine.step()

    def ends(self, request: Request) -> list[tuple[int, FinishReason]]:
        found = [each for each in self.events if each.request_id == request.request_id and each.finish_reason]
        return sorted((each.choice, each.finish_reason) for each in found if each.finish_reason is not None)


@pytest.fixture
def compiler() -> Compiler:
    return Compiler()


@pytest.fixture
def bench(compiler: Compiler) -> Bench:
    return Bench(compiler)


def test_others_run_while_a_grammar_compiles(bench: Bench, compiler: Compiler) -> None:
    limited, other = bench.send(n=2), bench.send(None)
    bench.run()
    assert bench.ends(other) and not bench.ends(limited)
    compiler.finish()
    bench.run()
    assert [choice for choice, _ in bench.ends(limited)] == [0, 1] and not compiler.open
    tokens = [each.token_ids for each in bench.events if (each.request_id, each.choice) == (limited.request_id, 1)]
    assert sum(tokens, ()) == expected(limited, 1)


def test_grammar_that_does_not_compile_is_an_error_event(bench: Bench, compiler: Compiler) -> None:
    request = bench.send(n=2)
    bench.run()
    compiler.finish(RequestError("no such rule", param="guidance"))
    bench.run()
    assert bench.ends(request) == [(0, FinishReason.ERROR), (1, FinishReason.ERROR)]


@pytest.mark.parametrize("late", [None, RequestError("no such rule")])
def test_request_that_is_aborted_while_it_compiles_ends_once(
    bench: Bench, compiler: Compiler, late: FerrumError | None
) -> None:
    request = bench.send(n=2, request_id="r")
    bench.run()
    bench.inbox.put(Abort("r"))
    bench.run()
    assert compiler.cancelled == compiler.waiting, "it had begun, so that it is reported nevertheless"
    again = bench.send(request_id="r")
    bench.run()
    compiler.finish(late)
    bench.run()
    assert bench.ends(request) == [(0, FinishReason.ABORT), (1, FinishReason.ABORT)]
    compiler.finish()
    bench.run()
    assert len(bench.ends(again)) == 3 and not compiler.open


def test_choice_that_is_aborted_while_it_compiles_never_runs(bench: Bench, compiler: Compiler) -> None:
    request = bench.send(n=3)
    bench.run()
    bench.inbox.put(Abort(request.request_id, 1))
    bench.run()
    compiler.finish()
    bench.run()
    assert len(bench.ends(request)) == 3 and (1, FinishReason.ABORT) in bench.ends(request)


def test_deadline_passes_while_a_grammar_compiles(bench: Bench, compiler: Compiler) -> None:
    request = bench.send(deadline=5.0)
    bench.run()
    bench.now += 6
    bench.run()
    assert bench.ends(request) == [(0, FinishReason.DEADLINE)]


def test_shutdown_ends_requests_that_compile(bench: Bench) -> None:
    request = bench.send(n=2)
    bench.inbox.put(Shutdown())
    bench.engine.step()
    assert bench.ends(request) == [(0, FinishReason.ABORT), (1, FinishReason.ABORT)]


def test_id_of_a_request_that_compiles_is_in_use(bench: Bench, compiler: Compiler) -> None:
    bench.send(request_id="r")
    bench.run()
    bench.send(None, request_id="r")
    bench.send(request_id="r")
    bench.run()
    assert [type(each.error) for each in bench.events] == [RequestError, RequestError]
    assert len(compiler.waiting) == 1


def test_engine_without_guides_refuses_limits() -> None:
    bench = Bench(None)
    request = bench.send()
    bench.run()
    assert bench.ends(request) == [(0, FinishReason.ERROR)]
