"""Engines that join and leave one host: what is refused, what waits, and what an engine gets before requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from threading import Thread

import pytest

from ferrum.client.replicas.members import Joins
from ferrum.client.replicas.replica_host import ReplicaHost
from ferrum.core.errors import EngineDead, ReplicaMismatch, RequestError
from ferrum.core.lora_option import AdapterFacts
from ferrum.core.params import SamplingParams
from ferrum.core.types import FinishReason, Request, TokenEvent
from ferrum.engine.host import Deliver
from ferrum.engine.messages import (
    Abort,
    AdapterReply,
    Ended,
    EngineInfo,
    EngineStats,
    Events,
    ImageCounts,
    LoadAdapter,
    Message,
    Report,
    UnloadAdapter,
)

INFO = EngineInfo("m", 97, 4096, 1024, "exact-1", page_size=16, weights="int8", files=(("weights", "aa"),))


class FakeEngine:
    """A host that replies to adapters at once and reports what a test says."""

    def __init__(self, info: EngineInfo = INFO, digest: bytes = b"1") -> None:
        self.info, self.digest = info, digest
        self.sent: list[Message] = []
        self.closed = False

    def start(self, deliver: Deliver) -> EngineInfo:
        self.deliver = deliver
        return self.info

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def reply(self) -> None:
        for each in [each for each in self.sent if isinstance(each, LoadAdapter)]:
            self.sent.remove(each)
            self.deliver(AdapterReply(each.ticket, AdapterFacts(each.path, self.digest, 1, 1)))

    def deliver_on(self, loop: object) -> None:
        raise AssertionError

    def close(self) -> None:
        self.closed = True

    @property
    def requests(self) -> list[Request]:
        return [each for each in self.sent if isinstance(each, Request)]

    def token(self, token: int, finish: FinishReason | None = None) -> None:
        name = self.requests[-1].request_id
        self.deliver(Events((TokenEvent(name, 0, (token,), finish_reason=finish),)))


class Replying(FakeEngine):
    """A host whose adapters load while they are asked for: `join` waits for them."""

    def send(self, message: Message) -> None:
        super().send(message)
        if isinstance(message, LoadAdapter):
            Thread(target=self.reply).start()


class Given:
    """A source of the engines that a test has."""

    def __init__(self, hosts: Sequence[FakeEngine]) -> None:
        self.hosts = hosts
        self.lost: list[int] = []

    def start(self, joins: Joins) -> None:
        for host in self.hosts:
            joins.join(host)

    def ended(self, number: int) -> None:
        self.lost.append(number)

    def close(self) -> None:
        pass


def started(*hosts: FakeEngine, stall_seconds: float = 120.0) -> tuple[ReplicaHost, list[Report]]:
    host = ReplicaHost(Given(hosts), stall_seconds=stall_seconds)
    reports: list[Report] = []
    host.start(reports.append)
    return host, reports


def request(name: str = "r", **options: int) -> Request:
    return Request(name, (1, 2, 3), SamplingParams(max_tokens=9), seed=0, **options)


def events(reports: Sequence[Report]) -> list[TokenEvent]:
    return [event for report in reports if isinstance(report, Events) for event in report.events]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"numerics_id": "exact-2"}, "numerics_id 'exact-2' instead of 'exact-1'"),
        ({"weights": "int4"}, "weights 'int4' instead of 'int8'"),
        ({"files": (("weights", "bb"),)}, "digest of weights 'bb' instead of 'aa'"),
        ({"files": (("tokenizer", "t"),)}, ""),
    ],
)
def test_an_engine_of_other_bits_is_refused_by_what_differs(change: dict[str, object], name: str) -> None:
    host, _ = started(FakeEngine())
    other = FakeEngine(replace(INFO, **change))
    if name:
        with pytest.raises(ReplicaMismatch, match=name):
            host.join(other)
    else:
        host.join(other)
    assert other.closed == bool(name)
    host.close()


def test_an_engine_gets_the_adapters_of_the_others_before_requests() -> None:
    first = FakeEngine()
    host, reports = started(first)
    host.send(LoadAdapter(0, "a"))
    first.reply()
    assert reports == [AdapterReply(0, AdapterFacts("a", b"1", 1, 1))]
    second = Replying()
    host.join(second)
    assert not second.sent
    with pytest.raises(ReplicaMismatch, match="adapter a: digest 32 instead of 31"):
        host.join(Replying(digest=b"2"))
    host.send(UnloadAdapter(b"1".hex()))
    third = FakeEngine()
    host.join(third)
    assert second.sent == [UnloadAdapter(b"1".hex())]
    assert not third.sent
    host.close()


def test_an_adapter_that_differs_between_engines_is_loaded_by_none() -> None:
    hosts = FakeEngine(), FakeEngine(digest=b"2")
    host, reports = started(*hosts)
    host.send(LoadAdapter(0, "a"))
    for each in hosts:
        each.reply()
    (reply,) = (each for each in reports if isinstance(each, AdapterReply))
    assert isinstance(reply.found, ReplicaMismatch)
    assert all({UnloadAdapter(b"1".hex()), UnloadAdapter(b"2".hex())} == set(each.sent) for each in hosts)
    host.close()


def test_an_engine_that_leaves_alone_keeps_its_requests_until_another_joins() -> None:
    first = FakeEngine()
    host, reports = started(first)
    host.send(request())
    first.token(5)
    host.leave(0)
    first.token(6)
    assert not first.closed
    host.send(request("late"))
    second = FakeEngine()
    host.join(second)
    made = [each.made.token_ids for each in second.requests if each.made is not None]
    assert made == [(5, 6)]
    assert {each.request_id for each in second.requests} >= {"late"}
    first.token(7)  # of the choice that has moved
    assert [each.token_ids for each in events(reports)] == [(5,), (6,)]
    host.close()


def test_a_request_under_which_engines_end_does_not_end_them_all() -> None:
    hosts = [FakeEngine() for _ in range(5)]
    host, reports = started(*hosts)
    host.send(request())
    while not events(reports):
        bad = next(each for each in hosts if each.requests)
        hosts.remove(bad)
        bad.deliver(Ended(EngineDead("a crash")))
    assert len(hosts) == 2
    assert isinstance(events(reports)[0].error, EngineDead)
    host.close()


def test_tokens_in_between_show_that_a_request_is_not_the_cause() -> None:
    hosts = [FakeEngine() for _ in range(6)]
    host, reports = started(*hosts)
    host.send(request())
    for token in range(5):
        bad = next(each for each in hosts if each.requests)
        bad.token(token)
        hosts.remove(bad)
        bad.deliver(Ended(EngineDead("a crash")))
    hosts[0].token(5, FinishReason.LENGTH)
    assert [each.token_ids for each in events(reports)] == [(token,) for token in range(6)]
    host.close()


def test_requests_that_find_no_engine_end_with_the_reason() -> None:
    first = FakeEngine()
    host, reports = started(first)
    first.deliver(Ended(EngineDead("a crash")))
    host.send(request("a"))
    host.send(request("b"))
    host.send(Abort("b"))
    host._check(time.monotonic() + 1000.0)
    by_name = {each.request_id: each for each in events(reports)}
    assert by_name["b"].finish_reason is FinishReason.ABORT
    assert isinstance(by_name["a"].error, EngineDead)
    assert not isinstance(by_name["a"].error, ReplicaMismatch)
    host.send(request("c"))
    with pytest.raises(ReplicaMismatch):
        host.join(FakeEngine(replace(INFO, numerics_id="exact-2")))
    host._check(time.monotonic() + 20.0)
    assert isinstance(events(reports)[-1].error, ReplicaMismatch)
    host.send(LoadAdapter(0, "a"))
    host._check(time.monotonic())
    assert isinstance(reports[-1], AdapterReply) and isinstance(reports[-1].found, EngineDead)
    host.close()


def test_an_engine_that_reports_nothing_counts_as_dead_only_with_requests() -> None:
    first, second = FakeEngine(), FakeEngine()
    host, reports = started(first, second, stall_seconds=60.0)
    assert host._check(time.monotonic() + 1000.0) == []
    host.send(request())
    busy, idle = (first, second) if first.requests else (second, first)
    assert len(host._check(time.monotonic() + 61.0)) == 1
    assert idle.requests[0].made is not None
    busy.token(3)  # too late
    assert not events(reports)
    host.close()


def test_counts_of_images_are_sums_over_engines() -> None:
    hosts = FakeEngine(), FakeEngine()
    host, reports = started(*hosts)
    for each in hosts:
        each.deliver(Events((), EngineStats(running=1, images=ImageCounts(held=2, nbytes=30))))
    assert isinstance(reports[-1], Events) and reports[-1].stats is not None
    assert reports[-1].stats.images == ImageCounts(held=4, nbytes=60)
    assert reports[-1].stats.running == 2
    host.close()


def test_other_messages_are_refused() -> None:
    host, _ = started(FakeEngine())
    with pytest.raises(TypeError, match="within an engine's process"):
        host.send(AdapterReply(0, RequestError("x")))  # type: ignore[arg-type]
    host.close()
