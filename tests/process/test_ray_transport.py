"""The transport of Ray Serve without Ray: sessions of a replica, and hosts that call it. `make test-ray` has Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine_fakes import FakeRecipe, expected, greedy, input_processor, parts
from fake_ray import FakeCluster
from ferrum.client.async_engine import AsyncEngine
from ferrum.client.input_processor import RequestOptions
from ferrum.client.replicas import engine_sessions, ray_replicas
from ferrum.client.replicas.ray_replicas import RayReplicas
from ferrum.client.replicas.replica_host import ReplicaHost
from ferrum.core.errors import EngineDead, ReplicaMismatch
from ferrum.core.types import Request

SLOW = FakeRecipe(seconds_per_step=0.002)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr(ray_replicas, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(ray_replicas, "BEAT_SECONDS", 0.05)
    found = FakeCluster()
    yield found
    found.close()


def client_of(cluster: FakeCluster, **files: str) -> AsyncEngine:
    host = ReplicaHost(RayReplicas(cluster.handle, 30.0), files=tuple(files.items()))
    return AsyncEngine.from_parts(replace(parts(), host=host))


def moved(engine: AsyncEngine) -> int:
    host = engine.client.router._host
    assert isinstance(host, ReplicaHost)
    return host.moved


def requests(count: int) -> list[Request]:
    make = input_processor()
    return [
        make.process(f"prompt {number}", greedy(40, n=1 + number % 2), RequestOptions(request_id=f"r{number}"))
        for number in range(count)
    ]


async def tokens_of(engine: AsyncEngine, asked: list[Request], disturb: Callable[[], None]) -> list[list[list[int]]]:
    """Return the tokens of all choices; `disturb` is called after the first of them."""
    engine.deliver_here()
    found: list[list[list[int]]] = [[[] for _ in request.choices] for request in asked]
    count = 0
    async for place, delta in engine.open(asked):
        assert delta.error is None
        found[place][delta.index] += delta.token_ids
        count += len(delta.token_ids)
        if count > 40:
            await asyncio.to_thread(disturb)
            count = -1 << 30
    return found


@pytest.mark.parametrize("way", ["kill", "stop", "alone"])
def test_streams_go_on_in_another_replica(cluster: FakeCluster, way: str) -> None:
    cluster.start("a", SLOW)
    if way != "alone":
        cluster.start("b", SLOW)

    def disturb() -> None:
        if way == "alone":
            cluster.stop("a")
            cluster.start("b", SLOW)
            cluster.stop("a")
        else:
            getattr(cluster, way)("a")

    async def run() -> None:
        async with client_of(cluster) as engine:
            while way != "alone" and len(engine.client.router._host._members.taking()) < 2:  # type: ignore[attr-defined]
                await asyncio.sleep(0.01)
            asked = requests(8)
            found = await tokens_of(engine, asked, disturb)
            assert found == [[list(expected(each, choice)) for choice in each.choices] for each in asked]
            assert moved(engine) > 0

    asyncio.run(run())


def test_a_replica_of_other_files_is_refused_by_their_names(cluster: FakeCluster) -> None:
    cluster.start("a", FakeRecipe(), files=(("weights", "aa"), ("tokenizer", "tt")))
    with pytest.raises(ReplicaMismatch, match=r"digest of tokenizer 'tt' instead of 'uu'$"):
        client_of(cluster, weights="aa", tokenizer="uu")


def test_streams_end_with_the_difference_after_an_update_to_other_weights(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ferrum.client.replicas.replica_host.MISMATCH_SECONDS", 0.05)
    cluster.start("a", SLOW)

    params = greedy(4000, ignore_eos=True)

    def update(engine: AsyncEngine) -> None:
        cluster.start("b", replace(SLOW, context=1024))
        while engine.client.router._host._live.mismatch is None:  # type: ignore[attr-defined]
            time.sleep(0.01)
        cluster.kill("a")

    async def run() -> None:
        async with client_of(cluster) as engine:
            tokens, error, begun = [], None, False
            async for delta in engine.generate("x" * 9, params):
                tokens += delta.token_ids
                error = delta.error
                if not begun:
                    begun = True
                    await asyncio.to_thread(update, engine)
            assert isinstance(error, ReplicaMismatch) and "max_sequence_length 1024" in str(error)
            whole = expected(engine.client.input_processor.process("x" * 9, params, RequestOptions()))
            assert tokens == list(whole[: len(tokens)])

    asyncio.run(run())


def test_a_replica_aborts_the_requests_of_a_client_that_is_gone(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray lets a streaming call go on after its caller was killed, so a session has a lease."""
    hold = tmp_path / "hold"
    hold.touch()
    cluster.start("a", FakeRecipe(hold=str(hold)))
    sessions = cluster.replicas["a"]
    monkeypatch.setattr(engine_sessions, "LEASE_SECONDS", 0.1)

    async def gone() -> None:
        await sessions.attach(replica="a", session="s")
        await sessions.take([requests(1)[0]], replica="a", session="s")
        async for _ in sessions.reports(replica="a", session="s"):
            pass
        with pytest.raises(EngineDead, match="session s has ended"):
            await sessions.take([], replica="a", session="s")
        hold.unlink()

    cluster.run("a", gone()).result(30)

    def still() -> float:
        return cluster.run("a", sessions.record_autoscaling_stats()).result(30)["choices"]

    until = time.monotonic() + 30
    while still() and time.monotonic() < until:
        time.sleep(0.01)
    assert not still()
