"""The page table: no page leaks, no page has two uses, and every sequence reads what it stored."""

from __future__ import annotations

import pytest

from ferrum.cache.page_table import FREED, PageCopy, PageGroup, PageTable
from ferrum.cache.pool import PagePool
from ferrum.core.errors import RequestError, UnknownSequence, Unsupported

MAX_DRAFT = 3


def table(num_pages: int = 8, page_size: int = 4, window: int | None = None) -> PageTable:
    return PageTable([PageGroup("main", num_pages, page_size, window)], max_draft=MAX_DRAFT)


def store(pages: PageTable, cache_id: str, length: int) -> None:
    assert pages.reserve(cache_id, length)
    pages.commit(cache_id, length)


def test_reserve_takes_whole_pages_and_begins_at_length_zero() -> None:
    pages = table()
    assert pages.reserve("a", 5)
    assert (pages.length("a"), pages.used, pages.free("main"), len(pages.row("a", "main"))) == (0, 2, 6, 2)
    assert pages.reserve("a", 8) and pages.used == 2
    pages.check()


def test_reserve_is_all_or_nothing_over_groups() -> None:
    pages = PageTable([PageGroup("wide", 100, 4), PageGroup("tight", 2, 4)])
    store(pages, "a", 4)
    assert not pages.reserve("a", 12)
    assert not pages.reserve("new", 8)
    assert pages.ids() == ("a",) and pages.free("wide") == 99 and pages.free("tight") == 1
    assert pages.capacity_tokens == 8
    pages.check()


def test_pages_are_allocated_in_a_deterministic_order() -> None:
    def rows() -> list[list[int]]:
        pages = table()
        store(pages, "a", 9)
        store(pages, "b", 5)
        pages.release("a")
        store(pages, "c", 16)
        return [list(pages.row(name, "main")) for name in pages.ids()]

    assert rows() == rows()


def test_commit_neither_exceeds_the_reservation_nor_goes_back() -> None:
    pages = table()
    store(pages, "a", 4)
    for length in (3, 5):
        with pytest.raises(RequestError) as caught:
            pages.commit("a", length)
        assert caught.value.param == "length"
    assert pages.length("a") == 4


@pytest.mark.parametrize("verb", ["length", "generation", "trim"])
def test_error_names_the_unknown_sequence(verb: str) -> None:
    with pytest.raises(UnknownSequence, match="unknown id"):
        getattr(table(), verb)("unknown id")


def test_release_is_idempotent_and_frees_every_page() -> None:
    pages = table()
    store(pages, "a", 7)
    assert pages.reserve("a", 20)
    pages.release("a")
    pages.release("a")
    pages.release("never was")
    assert pages.used == 0 and "a" not in pages
    pages.check()


def test_trim_frees_only_pages_beyond_the_length() -> None:
    pages = table()
    assert pages.reserve("a", 20)
    pages.commit("a", 5)
    pages.trim("a")
    assert pages.used == 2 and pages.length("a") == 5


def test_generation_increases_with_every_change_of_length_and_never_repeats() -> None:
    pages = table()
    seen = []
    for _ in range(2):
        store(pages, "a", 6)
        seen.append(pages.generation("a"))
        pages.truncate("a", 3)
        seen.append(pages.generation("a"))
        pages.truncate("a", 3)
        assert pages.generation("a") == seen[-1], "a truncation to the same length is no change"
        pages.release("a")
    assert seen == sorted(set(seen))


def test_fork_shares_every_page_and_copies_only_the_partial_one() -> None:
    pages = table()
    store(pages, "a", 10)
    pages.fork("a", "b")
    assert list(pages.row("b", "main")) == list(pages.row("a", "main"))
    assert pages.used == 3 and pages.shared == 3 and pages.take_copies() == ()
    before = list(pages.row("a", "main"))
    assert pages.reserve("b", 11)
    after = list(pages.row("b", "main"))
    assert pages.take_copies() == (PageCopy("main", before[2], after[2]),)
    assert after[:2] == before[:2] and list(pages.row("a", "main")) == before
    assert pages.reserve("a", 11) and pages.take_copies() == (), "the last owner writes in place"
    pages.check()


def test_fork_at_a_page_boundary_copies_nothing() -> None:
    pages = table()
    store(pages, "a", 8)
    pages.fork("a", "b")
    assert pages.reserve("b", 9) and pages.reserve("a", 9)
    assert pages.take_copies() == () and pages.shared == 2


def test_fork_excludes_pages_reserved_beyond_the_length() -> None:
    pages = table()
    store(pages, "a", 4)
    assert pages.reserve("a", 12)
    pages.fork("a", "b")
    assert len(pages.row("b", "main")) == 1


def test_fork_needs_a_source_and_a_new_id() -> None:
    pages = table()
    store(pages, "a", 4)
    with pytest.raises(UnknownSequence):
        pages.fork("x", "b")
    with pytest.raises(RequestError) as caught:
        pages.fork("a", "a")
    assert caught.value.param == "target"


def test_pending_copy_counts_as_a_page() -> None:
    pages = table(num_pages=2)
    store(pages, "a", 6)
    pages.fork("a", "b")
    assert not pages.reserve("b", 7)
    pages.release("a")
    assert pages.reserve("b", 7) and pages.take_copies() == ()


def test_source_of_a_pending_copy_is_not_allocated() -> None:
    pages = table(num_pages=3)
    store(pages, "a", 2)
    pages.fork("a", "b")
    assert pages.reserve("b", 3)
    pages.release("a")
    assert not pages.reserve("c", 8), "one page is free, the source is not read yet"
    pages.check()
    (copy,) = pages.take_copies()
    assert pages.reserve("c", 8) and copy.source in pages.row("c", "main")
    pages.check()


def test_release_of_a_target_cancels_its_copy() -> None:
    pages = table()
    store(pages, "a", 2)
    pages.fork("a", "b")
    assert pages.reserve("b", 3)
    pages.release("b")
    pages.release("a")
    assert pages.take_copies() == () and pages.used == 0
    pages.check()


def test_copy_of_a_pending_copy_reads_the_first_source() -> None:
    pages = table()
    store(pages, "a", 2)
    for name in ("b", "c"):
        pages.fork("a", name)
    assert pages.reserve("b", 3)
    pages.fork("b", "d")
    assert pages.reserve("d", 3)
    source = pages.row("a", "main")[0]
    assert {copy.source for copy in pages.take_copies()} == {source}


def test_window_frees_unseen_pages_and_keeps_the_slack() -> None:
    pages = table(num_pages=40, window=6)
    for length in range(1, 60):
        store(pages, "a", length)
        row = pages.row("a", "main")
        oldest_seen = max(0, length - MAX_DRAFT - 4 - 6 + 1)
        assert row.count(FREED) == oldest_seen // 4
        assert all(page == FREED for page in row[: row.count(FREED)])
        pages.check()


def test_window_truncates_within_the_slack_only() -> None:
    pages = table(num_pages=40, window=6)
    store(pages, "a", 50)
    assert pages.can_truncate("a", 50 - MAX_DRAFT - 4)
    pages.truncate("a", 50 - MAX_DRAFT - 4)
    assert not pages.can_truncate("a", 30)
    with pytest.raises(Unsupported):
        pages.truncate("a", 30)
    assert pages.length("a") == 43
    pages.truncate("a", 0)
    assert pages.used == 0
    store(pages, "a", 5)
    pages.check()


def test_held_sequence_keeps_its_window_until_released() -> None:
    pages = table(num_pages=20, window=6)
    store(pages, "a", 10)
    before = list(pages.row("a", "main"))
    with pages.holding(["a"]):
        store(pages, "a", 60)
        with pages.holding(["a"]):
            assert pages.can_truncate("a", 10)
        assert pages.can_truncate("a", 10), "the outer block still holds it"
        pages.truncate("a", 10)
    assert pages.row("a", "main") == before
    with pages.holding(["a"]):
        store(pages, "a", 60)
    store(pages, "b", 10)
    store(pages, "b", 60)
    rows = [[page == FREED for page in pages.row(name, "main")] for name in "ab"]
    assert rows[0] == rows[1] and not pages.can_truncate("a", 10)
    with pages.holding(["a", "b"]):
        pages.release("a")
        pages.release("b")
        store(pages, "b", 4)
    with pytest.raises(UnknownSequence), pages.holding(["b", "a"]):
        pass
    pages.check()
    assert pages.used == 1


def test_truncate_refuses_lengths_out_of_range() -> None:
    pages = table()
    store(pages, "a", 5)
    for length in (-1, 6):
        with pytest.raises(RequestError):
            pages.truncate("a", length)


@pytest.mark.parametrize("window", [None, 1, 5, 8, 13])
@pytest.mark.parametrize("step", [1, 4, 11])
def test_reserve_succeeds_for_lengths_that_fit(window: int | None, step: int) -> None:
    pages = PageTable([PageGroup("main", 9, 4, window)], max_draft=MAX_DRAFT)
    longest = max(length for length in range(80) if pages.fits_empty_pool(length, step))
    assert longest >= 36 or window is not None
    length = 0
    while length < longest:
        length = min(longest, length + step)
        store(pages, "a", length)


def test_window_holds_a_sequence_of_any_length_in_a_few_pages() -> None:
    pages = table(num_pages=7, window=8)
    assert pages.fits_empty_pool(10**6, 4) and not pages.fits_empty_pool(10**6, 12)
    for length in range(4, 400, 4):
        store(pages, "a", length)


@pytest.mark.parametrize("num_pages", range(1, 12))
def test_growth_is_bounded_by_the_room_of_a_window_group(num_pages: int) -> None:
    pages = table(num_pages=num_pages, window=8)
    growth = pages.growth(16)
    assert growth == 16 or (growth >= 4 and pages.fits_empty_pool(10**6, growth))
    assert growth == 16 or not pages.fits_empty_pool(10**6, growth + 1)
    assert growth < 16 or pages.fits_empty_pool(10**6, 16) or not pages.fits_empty_pool(10**6, 4)
    assert table(num_pages=num_pages).growth(16) == 16


def test_reset_removes_every_sequence() -> None:
    pages = table()
    store(pages, "a", 5)
    pages.fork("a", "b")
    assert pages.reserve("b", 6)
    pages.reset()
    assert pages.ids() == () and pages.used == 0 and pages.take_copies() == ()
    pages.check()


def test_reset_repairs_state_that_an_interrupt_left_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    pages = table()
    store(pages, "a", 5)
    pages.fork("a", "b")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PagePool, "drop", interrupted)  # the last part of replacing a shared page
        pages.reserve("b", 6)
    pages.reset()
    assert pages.used == 0
    pages.check()
