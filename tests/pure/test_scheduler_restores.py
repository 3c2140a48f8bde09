"""Restores from a KV tier: only the requests that need the pages wait."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.cache.pool import HashedPage, PageHash
from ferrum.cache.tiered_restore import WantedPage
from ferrum.core.policy_config import POLICY
from ferrum.core.types import Request
from ferrum.scheduler.prefix_sharing import PrefixMatch, PrefixSharing
from ferrum.scheduler.sequence import Sequence as Choice
from scheduler_bench import Bench, lengths


class SlowDisk:
    """A tier with every published page, which delivers when the test calls `arrive`."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.kept: dict[PageHash, list[int]] = {}
        self.lost: set[int] = set()
        self.asked: list[tuple[Sequence[WantedPage], Future[Sequence[bool]]]] = []
        bench.pages.attach(self)

    def keep(self, group: str, hashed: HashedPage) -> None:
        self.kept[hashed.page_hash] = list(self.bench.executor.content(group, hashed.page))

    def evicted(self, group: str, hashed: HashedPage) -> None:
        """Ignore the eviction: every page is kept already."""

    def fetch(self, wanted: Sequence[WantedPage]) -> Future[Sequence[bool]]:
        future: Future[Sequence[bool]] = Future()
        self.asked.append((wanted, future))
        return future

    def arrive(self) -> None:
        """Deliver the oldest fetch, up to the first lost page."""
        (wanted, future), self.asked = self.asked[0], self.asked[1:]
        there = [each.page_hash in self.kept for each in wanted]
        there = [each and not any(index <= at for index in self.lost) for at, each in enumerate(there)]
        for each, is_there in zip(wanted, there, strict=True):
            if is_there:
                self.bench.executor.content(each.group, each.page)[:] = self.kept[each.page_hash]
        future.set_result(there)


def restarted(**options: int) -> tuple[Bench, SlowDisk]:
    """Return a bench whose tier has the pages of "a" and whose pool is empty."""
    bench = Bench(prefixes=True, budget=64, **options)
    disk = SlowDisk(bench)
    bench.add("a", 30, max_tokens=1)
    assert bench.scheduler.plan() is None, "the pages are being fetched"
    disk.arrive()
    bench.run()
    bench.pages.reset()
    return bench, disk


def again(bench: Bench, name: str = "again") -> Request:
    return bench.add(name, 30, max_tokens=1)


def test_request_waits_for_its_pages_while_others_run() -> None:
    bench, disk = restarted()
    woken: list[int] = []
    bench.scheduler.wake_by(lambda: woken.append(1))
    request = again(bench)
    assert bench.scheduler.plan() is None and bench.scheduler.has_work
    other = bench.add("other", 3, seed=1, max_tokens=3)
    assert lengths(bench.step()) == {"other/0": 3}
    assert not woken
    disk.arrive()
    assert woken
    assert lengths(bench.step()) == {"other/0": 1, "again/0": 2}
    bench.run()
    bench.agrees(request, other)
    assert bench.end("again").cached_tokens == 28
    counts = bench.scheduler.prefix_counts
    assert (counts.restored_pages, counts.external_hit_tokens) == (7, 28)


def test_pages_are_fetched_once_for_all_requests() -> None:
    bench, disk = restarted()
    requests = [again(bench, f"again{index}") for index in range(3)]
    assert bench.scheduler.plan() is None and len(disk.asked) == 1
    disk.arrive()
    assert lengths(bench.step()) == {f"again{index}/0": 2 for index in range(3)}
    bench.run()
    bench.agrees(*requests)


def test_missing_pages_are_computed() -> None:
    bench, disk = restarted()
    disk.lost = {3}
    request = again(bench)
    assert bench.scheduler.plan() is None
    disk.arrive()
    assert lengths(bench.step()) == {"again/0": 30 - 12}
    bench.run()
    bench.agrees(request)


def test_failed_fetch_only_loses_its_pages() -> None:
    bench, disk = restarted()
    request = again(bench)
    assert bench.scheduler.plan() is None
    disk.asked.pop()[1].set_exception(OSError("the disk is gone"))
    assert lengths(bench.step()) == {"again/0": 30}
    bench.run()
    bench.agrees(request)


def test_fetch_of_an_aborted_request_serves_the_next_one() -> None:
    bench, disk = restarted()
    again(bench)
    assert bench.scheduler.plan() is None
    bench.take(bench.scheduler.abort("again"))
    assert not bench.scheduler.has_work
    again(bench, "next")
    assert bench.scheduler.plan() is None and len(disk.asked) == 1
    disk.arrive()
    assert lengths(bench.step()) == {"next/0": 2}
    bench.run()


def test_pool_full_of_pending_restores_is_no_error() -> None:
    bench, disk = restarted(num_pages=8)
    requests = [again(bench), bench.add("other", 24, seed=1, max_tokens=4)]
    while bench.scheduler.has_work:
        plan = bench.scheduler.plan()
        if plan is None:
            disk.arrive()
        else:
            bench.commit(plan)
    bench.agrees(*requests)


def test_first_sequence_waits_for_restores_and_is_not_preempted() -> None:
    bench, disk = restarted(num_pages=9, overcommitted=True)
    first = bench.add("first", 3, seed=1, max_tokens=12)
    bench.step()
    request = again(bench)
    while (plan := bench.scheduler.plan()) is not None:
        bench.commit(plan)
    assert bench.pages.length("first/0") == 8, "pending restores hold all other pages"
    disk.arrive()
    assert lengths(bench.step()) == {"first/0": 1}
    bench.run()
    bench.agrees(first, request)
    assert bench.scheduler.preemptions == 0


def test_fetch_starts_only_if_the_whole_sequence_has_room() -> None:
    bench, disk = restarted(num_pages=9)
    first = bench.add("first", 3, seed=1, max_tokens=20)
    for _ in range(10):
        bench.step()
    request = again(bench)
    while (plan := bench.scheduler.plan()) is not None:
        assert not disk.asked
        bench.commit(plan)
    assert not bench.scheduler.num_running
    disk.arrive()
    bench.run()
    bench.agrees(first, request)
    assert bench.end("again").cached_tokens == 28


def test_reset_waits_for_pending_restores() -> None:
    pages = PageTable([PageGroup("main", 8, 4)])
    futures: list[Future[Sequence[bool]]] = []

    class Tier:
        def keep(self, group: str, hashed: HashedPage) -> None: ...

        def evicted(self, group: str, hashed: HashedPage) -> None: ...

        def fetch(self, wanted: Sequence[WantedPage]) -> Future[Sequence[bool]]:
            futures.append(Future())
            return futures[-1]

    pages.attach(Tier())
    assert pages.restores.begin([b"one", b"two"], 0, lambda held: True)
    assert pages.restores.active and b"two" in pages.restores and pages.used == 2
    futures[0].set_result([True, False])
    pages.reset()
    pages.check()
    assert not pages.restores.active and pages.used == 0 and pages.prefix_counts().cached_pages == 0


@pytest.mark.parametrize("windows", [(None,), (8,), (8, None)])
def test_restored_tokens_are_counted_once(windows: tuple[int | None, ...]) -> None:
    pages = PageTable([PageGroup(str(index), 100, 4, window) for index, window in enumerate(windows)], max_draft=4)

    class Tier:
        def keep(self, group: str, hashed: HashedPage) -> None: ...

        def evicted(self, group: str, hashed: HashedPage) -> None: ...

        def fetch(self, wanted: Sequence[WantedPage]) -> Future[Sequence[bool]]:
            future: Future[Sequence[bool]] = Future()
            future.set_result([True] * len(wanted))
            return future

    pages.attach(Tier())
    names = [bytes([index]) * 32 for index in range(40)]
    assert pages.restores.begin(names, 0, lambda held: True)
    counts = pages.prefix_counts()
    assert pages.match(names) == 40 and counts.external_query_tokens == counts.external_hit_tokens == 160


def test_fetch_takes_no_pages_that_running_sequences_need() -> None:
    """Their growth is reserved, though those pages are free now."""
    bench, disk = restarted(num_pages=20)
    for name, seed in (("A", 1), ("B", 2)):
        bench.add(name, 4, seed=seed, max_tokens=30)  # nine pages each at the end
    for _ in range(15):
        bench.step()
    bench.add("again", 30, max_tokens=20)
    while bench.scheduler.num_running:
        assert not disk.asked
        assert set(lengths(bench.step())) == {"A/0", "B/0"}
    assert bench.scheduler.plan() is None
    disk.arrive()
    bench.run()
    assert bench.end("again").cached_tokens == 28 and not bench.scheduler.preemptions


def test_requests_waiting_for_the_same_pages_are_looked_up_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []
    lookup = PrefixSharing.lookup

    def counted(prefixes: PrefixSharing, sequence: Choice, limit: int) -> PrefixMatch:
        looked.append(sequence.cache_id)
        return lookup(prefixes, sequence, limit)

    bench, disk = restarted()
    bench.add("other", 3, seed=1, max_tokens=40)
    bench.step()
    monkeypatch.setattr(PrefixSharing, "lookup", counted)
    requests = [again(bench, f"again{index}") for index in range(400)]
    counts = []
    for _ in range(10):
        before = len(looked)
        assert lengths(bench.step()) == {"other/0": 1}
        counts.append(len(looked) - before)
    assert sorted(looked) == sorted(f"again{index}/0" for index in range(400))
    assert max(counts) <= POLICY.prefix_lookup_pages // 7 and counts[-1] == 0
    disk.arrive()
    bench.run()
    bench.agrees(*requests)
