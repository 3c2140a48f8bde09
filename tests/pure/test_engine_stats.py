"""Statistics of an engine: running and waiting sequences, KV usage, and when sequences left the queue."""

from __future__ import annotations

from queue import SimpleQueue

import pytest

from engine_fakes import FakeRecipe, ServedFake, greedy, input_processor
from fakes import admit_all
from ferrum.core.types import TokenEvent
from ferrum.engine.engine import STATS_SECONDS, Engine
from ferrum.engine.messages import Abort, EngineStats, Events, Message, Wake
from ferrum.scheduler import admission


class Watched:
    """An engine on the test's clock, with its reports and statistics."""

    def __init__(self, recipe: FakeRecipe) -> None:
        built = recipe()
        assert isinstance(built.executor, ServedFake)
        self.executor = built.executor
        self.executor.owner = "test"
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.now = 0.0
        self.events: list[TokenEvent] = []
        self.stats: list[EngineStats] = []
        self.engine = Engine(self.executor, built.scheduler, inbox=self.inbox, post=self._post, clock=lambda: self.now)

    def _post(self, news: Events) -> None:
        self.events += news.events
        if news.stats is not None:
            self.stats.append(news.stats)

    def add(self, length: int, max_tokens: int) -> str:
        request = input_processor().process([1] * length, greedy(max_tokens, ignore_eos=True))
        self.inbox.put(request)
        return request.request_id

    def run(self, seconds: float = 1.0) -> None:
        """Run until all requests have ended, with the given seconds per step."""
        while self.engine.step():
            self.now += seconds

    def scheduled(self, request_id: str) -> set[float | None]:
        return {event.scheduled for event in self.events if event.request_id == request_id}


def test_a_sequence_leaves_the_queue_with_its_first_step() -> None:
    watched = Watched(FakeRecipe(max_sequences=1))
    first, second = watched.add(4, 3), watched.add(4, 2)
    watched.now = 10.0
    watched.run()
    assert watched.scheduled(first) == {10.0} and watched.scheduled(second) == {13.0}


def test_every_step_is_reported_with_its_tokens_even_without_events() -> None:
    watched = Watched(FakeRecipe(max_tokens_per_step=8, page_size=16, num_pages=10))
    watched.add(20, 2)
    watched.run()
    assert [stats.step_tokens for stats in watched.stats] == [(8,), (8,), (4,), (1,)]
    assert [stats.running for stats in watched.stats] == [1, 1, 1, 0]
    assert [stats.kv_usage for stats in watched.stats] == [0.1, 0.1, 0.2, 0.0]


def test_quick_steps_are_reported_together_and_the_last_one_immediately() -> None:
    watched = Watched(FakeRecipe(max_tokens_per_step=8))
    watched.add(4, 8)
    watched.run(0.4 * STATS_SECONDS)
    assert [stats.step_tokens for stats in watched.stats] == [(4,), (1, 1, 1), (1, 1, 1), (1,)]
    assert [stats.running for stats in watched.stats] == [1, 1, 1, 0]
    assert len(watched.events) == 8, "tokens wait for nothing"


def test_a_preempted_sequence_is_counted_and_leaves_the_queue_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "growth_reserve", admit_all)
    watched = Watched(FakeRecipe(num_pages=4, page_size=4, max_tokens_per_step=4))
    ids = [watched.add(6, 6), watched.add(6, 6)]
    watched.run()
    told = {event.request_id: event.preemptions for event in watched.events}
    assert watched.stats[-1].preemptions == sum(told.values()) > 0
    assert max(stats.waiting for stats in watched.stats) == 1
    for request_id in ids:
        assert len(watched.scheduled(request_id)) == 1  # a preemption after the first token does not move it


def test_pages_restored_without_a_waiting_request_are_reported_as_free() -> None:
    watched = Watched(FakeRecipe(prefixes=True, page_size=16, num_pages=10))
    watched.executor.keep_evicted(slow=True)
    request_id = watched.add(20, 2)
    watched.run()
    watched.inbox.put(Abort(request_id))
    watched.run()
    assert watched.stats[-1].kv_usage == 0.1, "one is on its way"
    watched.executor.deliver()
    watched.inbox.put(Wake())
    watched.run()
    assert watched.stats[-1].kv_usage == 0.0
