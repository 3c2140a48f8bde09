"""Pages that come back from outside take their time, and only who wants them waits."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from ferrum.cache.page_hashes import PageHash, HashedPage
from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.cache.tiered_restore import WantedPage
from ferrum.core.policy_config import POLICY
from ferrum.core.types import Request
from ferrum.core.types import Sequence as Choice
from ferrum.scheduler.prefix_sharing import PrefixMatch, PrefixSharing
from scheduler_bench import Bench, lengths


class SlowDisk:
    """Has kept every page that was proven, and gives back what a test lets arrive."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.kept: dict[PageHash, list[int]] = {}
        self.lost: set[int] = set()
        self.asked: list[tuple[Sequence[WantedPage], Future[Sequence[bool]]]] = []
        bench.pages.attach(self)

    def keep(self, group: str, hashed: HashedPage) -> None:
        self.kept[hashed.page_hash] = list(self.bench.executor.content(group, hashed.page))

    def evicted(self, group: str, hashed: HashedPage) -> None:
        """It has them all."""

    def fetch(self, wanted: Sequence[WantedPage]) -> Future[Sequence[bool]]:
        future: Future[Sequence[bool]] = Future()
        self.asked.append((wanted, future))
        return future

    def arrive(self) -> None:
        """What is on its way is there, but for the pages that are lost, and what follows the first of them."""
        (wanted, future), self.asked = self.asked[0], self.asked[1:]
        there = [each.page_hash in self.kept for each in wanted]
        there = [each and not any(index <= at for index in self.lost) for at, each in enumerate(there)]
        for each, is_there in zip(wanted, there, strict=True):
            if is_there:
                self.bench.executor.content(each.group, each.page)[:] = self.kept[each.page_hash]
        future.set_result(there)


def restarted(**options: int) -> tuple[Bench, SlowDisk]:
    """A bench whose disk has the pages of "a", while its pool has nothing."""
    bench = Bench(prefixes=True, budget=64, **options)
    disk = SlowDisk(bench)
    bench.add("a", 30, max_tokens=1)
    assert bench.scheduler.plan() is None, "it is looked for"
    disk.arrive()
    bench.run()
    bench.pages.reset()
    return bench, disk


def again(bench: Bench, name: str = "again") -> Request:
    return bench.add(name, 30, max_tokens=1)


def test_who_wants_them_waits_and_others_go_on() -> None:
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


def test_they_are_fetched_once_for_all_that_want_them() -> None:
    bench, disk = restarted()
    requests = [again(bench, f"again{index}") for index in range(3)]
    assert bench.scheduler.plan() is None and len(disk.asked) == 1
    disk.arrive()
    assert lengths(bench.step()) == {f"again{index}/0": 2 for index in range(3)}
    bench.run()
    bench.agrees(*requests)


def test_what_does_not_come_is_computed() -> None:
    bench, disk = restarted()
    disk.lost = {3}
    request = again(bench)
    assert bench.scheduler.plan() is None
    disk.arrive()
    assert lengths(bench.step()) == {"again/0": 30 - 12}
    bench.run()
    bench.agrees(request)


def test_a_fetch_that_breaks_costs_its_pages_and_nothing_else() -> None:
    bench, disk = restarted()
    request = again(bench)
    assert bench.scheduler.plan() is None
    disk.asked.pop()[1].set_exception(OSError("the disk is gone"))
    assert lengths(bench.step()) == {"again/0": 30}
    bench.run()
    bench.agrees(request)


def test_who_leaves_meanwhile_leaves_them_to_others() -> None:
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


def test_a_pool_that_is_full_of_them_is_nobodys_error() -> None:
    bench, disk = restarted(num_pages=8)
    requests = [again(bench), bench.add("other", 24, seed=1, max_tokens=4)]
    while bench.scheduler.has_work:
        plan = bench.scheduler.plan()
        if plan is None:
            disk.arrive()
        else:
            bench.commit(plan)
    bench.agrees(*requests)


def test_who_is_served_first_waits_for_a_page_and_does_not_begin_anew() -> None:
    bench, disk = restarted(num_pages=9, hasty=True)
    first = bench.add("first", 3, seed=1, max_tokens=12)
    bench.step()
    request = again(bench)
    while (plan := bench.scheduler.plan()) is not None:
        bench.commit(plan)
    assert bench.pages.length("first/0") == 8, "all other pages wait for what is on its way"
    disk.arrive()
    assert lengths(bench.step()) == {"first/0": 1}
    bench.run()
    bench.agrees(first, request)
    assert bench.scheduler.preemptions == 0


def test_they_are_looked_for_when_there_is_room_for_the_whole() -> None:
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


def test_a_table_that_is_reset_waits_for_those_that_write() -> None:
    pages = PageTable([PageGroup("main", 8, 4)])
    futures: list[Future[Sequence[bool]]] = []

    class Keeper:
        def keep(self, group: str, hashed: HashedPage) -> None: ...

        def evicted(self, group: str, hashed: HashedPage) -> None: ...

        def fetch(self, wanted: Sequence[WantedPage]) -> Future[Sequence[bool]]:
            futures.append(Future())
            return futures[-1]

    pages.attach(Keeper())
    assert pages.restores.begin([b"one", b"two"], 0, lambda held: True)
    assert pages.restores and b"two" in pages.restores and pages.used == 2
    futures[0].set_result([True, False])
    pages.reset()
    pages.check()
    assert not pages.restores and pages.used == 0 and pages.prefix_counts().cached_pages == 0


@pytest.mark.parametrize("windows", [(None,), (8,), (8, None)])
def test_what_comes_back_is_counted_once_for_each_token(windows: tuple[int | None, ...]) -> None:
    pages = PageTable([PageGroup(str(index), 100, 4, window) for index, window in enumerate(windows)], max_draft=4)

    class Keeper:
        def keep(self, group: str, hashed: HashedPage) -> None: ...

        def evicted(self, group: str, hashed: HashedPage) -> None: ...

        def fetch(self, wanted: Sequence[WantedPage]) -> Future[Sequence[bool]]:
            future: Future[Sequence[bool]] = Future()
            future.set_result([True] * len(wanted))
            return future

    pages.attach(Keeper())
    names = [bytes([index]) * 32 for index in range(40)]
    assert pages.restores.begin(names, 0, lambda held: True)
    counts = pages.prefix_counts()
    assert pages.match(names) == 40 and counts.external_query_tokens == counts.external_hit_tokens == 160


def test_who_is_not_let_in_yet_takes_no_pages_from_those_who_run() -> None:
    """What they need to their end is not free, though it may be now."""
    bench, disk = restarted(num_pages=20)
    for name, seed in (("A", 1), ("B", 2)):
        bench.add(name, 4, seed=seed, max_tokens=30)  # nine pages each, at their end
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


def test_many_who_wait_for_the_same_pages_are_looked_at_once_and_not_all_in_one_step(
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
