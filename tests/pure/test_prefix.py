"""The prefix cache: what pages are called, who finds them, and which of them go first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from ferrum.cache.page_hashes import PageHash
from ferrum.cache.page_table import PageCopy, PageGroup, PageTable
from ferrum.cache.prefix_hash import PartialPages, PrefixScope
from ferrum.core.snapshots import PrefixCounts

SIZE = 4
SCOPE = PrefixScope(model="m", weights="bfloat16", kv_format="bfloat16", page_size=SIZE, numerics_id="n")


def named(tokens: Sequence[int], scope: PrefixScope = SCOPE, **owner: str | None) -> list[PageHash]:
    names: list[PageHash] = []
    scope.extend(names, scope.root(**{"adapter": None, "tenant": "", "salt": "", **owner}), tokens)
    return names


def table(num_pages: int = 12, window: int | None = None) -> PageTable:
    return PageTable([PageGroup("main", num_pages, SIZE, window)], max_draft=0)


def run(pages: PageTable, cache_id: str, tokens: Sequence[int], *, step: int = 100, sound: bool = True) -> int:
    """Compute a sequence, with what is there already; how many of its tokens were."""
    names = named(tokens)
    found = pages.match(names)
    pages.adopt(cache_id, names, found)
    while pages.length(cache_id) < len(tokens):
        length = min(len(tokens), pages.length(cache_id) + step)
        assert pages.reserve(cache_id, length)
        pages.commit(cache_id, length)
    if sound:
        pages.publish(cache_id)
    pages.check()
    return found * SIZE


def test_a_name_depends_on_everything_that_keys_and_values_depend_on_and_on_whose_they_are() -> None:
    tokens = range(SIZE)
    fields = {"model": "x", "weights": "x", "kv_format": "x", "page_size": 2, "numerics_id": "x"}
    scopes = [SCOPE, *(replace(SCOPE, **{name: value}) for name, value in fields.items())]
    owners: list[dict[str, str | None]] = [
        {},
        {"adapter": ""},
        {"adapter": "a"},
        {"tenant": "a"},
        {"salt": "a"},
        {"tenant": "ab", "salt": "c"},
        {"tenant": "a", "salt": "bc"},
    ]
    first = [named(tokens, scope)[0] for scope in scopes]
    first += [named(tokens, **owner)[0] for owner in owners[1:]]
    first += [named([0, 1, 2, 4])[0], named([1, 0, 2, 3])[0]]
    assert all(one != other for one, other in combinations(first, 2))


def test_a_page_is_not_found_at_another_position_or_after_other_tokens() -> None:
    twice, after = named([1, 2, 3, 4] * 2), named([9, 9, 9, 9, 1, 2, 3, 4])
    assert len({*twice, *after}) == 4


def test_only_full_pages_have_names_and_they_are_added_as_tokens_come() -> None:
    tokens = list(range(3 * SIZE))
    whole, root = named(tokens), SCOPE.root(adapter=None, tenant="", salt="")
    names: list[PageHash] = []
    for length in range(len(tokens) + 1):
        SCOPE.extend(names, root, tokens[:length])
        assert names == whole[: length // SIZE]


def test_what_a_sequence_computed_is_found_while_it_runs_and_after_it_has_gone() -> None:
    pages = table()
    tokens = list(range(10))
    assert run(pages, "a", tokens) == 0
    assert run(pages, "b", tokens) == 8
    assert list(pages.row("b", "main"))[:2] == list(pages.row("a", "main"))[:2] and pages.shared == 2
    pages.release("a")
    pages.release("b")
    assert pages.used == 0
    assert run(pages, "c", [*tokens[:4], 77, *tokens[5:]]) == 4
    pages.release("c")
    pages.check()


def test_nothing_is_found_before_its_sequence_is_proven_and_never_if_it_fails() -> None:
    pages = table()
    tokens = list(range(8))
    run(pages, "a", tokens, sound=False)
    assert pages.match(named(tokens)) == 0
    pages.release("a")
    assert pages.match(named(tokens)) == 0 and pages.free("main") == 12
    assert pages.prefix_counts() == PrefixCounts()


def test_of_two_that_compute_the_same_one_is_kept() -> None:
    pages = table()
    tokens = list(range(8))
    run(pages, "a", tokens, sound=False)
    run(pages, "b", tokens, sound=False)
    pages.publish("b")
    pages.publish("a")
    pages.release("a")
    pages.release("b")
    pages.check()
    assert pages.prefix_counts().cached_pages == 2


def test_idle_pages_count_as_free_and_the_longest_idle_goes_first_ends_before_beginnings() -> None:
    pages = table(num_pages=6)
    old, new = list(range(100, 112)), list(range(200, 212))
    for tokens in (old, new):
        run(pages, "x", tokens)
        pages.release("x")
    assert (pages.used, pages.free("main")) == (0, 6)
    pages.adopt("again", named(old), 1)  # the beginning of the old one is used once more
    pages.release("again")
    assert pages.reserve("c", 2 * SIZE)
    assert (pages.match(named(old)), pages.match(named(new))) == (1, 3)
    assert pages.reserve("c", 3 * SIZE)
    assert (pages.match(named(old)), pages.match(named(new))) == (1, 2)
    assert pages.prefix_counts() == PrefixCounts(cached_pages=3, evicted_pages=3)
    pages.check()


def test_a_page_with_an_owner_is_never_given_up() -> None:
    pages = table(num_pages=3)
    run(pages, "a", list(range(12)))
    assert not pages.reserve("b", 1)
    assert pages.match(named(range(12))) == 3


def test_a_named_page_is_not_written_to_again() -> None:
    pages = table()
    tokens = list(range(8))
    run(pages, "a", tokens)
    pages.truncate("a", 6)
    before = list(pages.row("a", "main"))
    assert pages.reserve("a", 7)
    after = list(pages.row("a", "main"))
    assert pages.match(named(tokens)) == 2, "the page that is to be copied stays findable"
    pages.check()
    assert pages.take_copies() == (PageCopy("main", before[1], after[1]),)
    pages.check()
    edited = [*tokens[:6], 90, 91]
    pages.label("a", named(edited))
    assert pages.reserve("a", 8)
    pages.commit("a", 8)
    pages.publish("a")
    pages.release("a")
    assert pages.match(named(tokens)) == pages.match(named(edited)) == 2


def test_a_window_needs_only_what_the_next_query_sees() -> None:
    pages = table(num_pages=40, window=6)
    tokens = list(range(32))
    run(pages, "a", tokens, step=SIZE)
    pages.release("a")
    pages.adopt("b", named(tokens), pages.match(named(tokens)))
    assert pages.length("b") == 32
    # Position 32 sees the keys from 27 on: the last two pages.
    assert [page >= 0 for page in pages.row("b", "main")] == [False] * 6 + [True] * 2
    assert not pages.can_truncate("b", 28)
    pages.check()


def test_a_window_that_is_gone_is_no_hit_and_one_before_it_may_be() -> None:
    pages = PageTable([PageGroup("full", 40, SIZE), PageGroup("window", 6, SIZE, 6)], max_draft=0)
    tokens = list(range(32))
    run(pages, "a", tokens, step=SIZE)
    assert pages.match(named(tokens)) == 8
    assert pages.match(named(tokens[:12])) < 3, "those pages have left the window and were needed since"
    pages.release("a")
    pages.check()


def test_reset_forgets_every_prefix() -> None:
    pages = table()
    run(pages, "a", list(range(8)))
    pages.release("a")
    run(pages, "b", list(range(50, 58)))
    pages.reset()
    pages.check()
    assert pages.match(named(range(8))) == 0 and pages.prefix_counts().cached_pages == 0
    assert pages.free("main") == 12 and pages.ids() == ()


@pytest.mark.parametrize("copies", [1, 2])
def test_a_fork_keeps_named_pages_and_names_its_own(copies: int) -> None:
    pages = table(num_pages=20)
    tokens = list(range(6))
    run(pages, "a", tokens)
    for index in range(copies):
        fork, own = f"f{index}", [*tokens, *range(90 + 10 * index, 94 + 10 * index)]
        pages.fork("a", fork)
        pages.label(fork, named(own))
        assert pages.reserve(fork, 10)
        pages.take_copies()
        pages.commit(fork, 10)
        pages.publish(fork)
        assert pages.match(named(own)) == 2
        pages.check()
    assert pages.prefix_counts().cached_pages == 1 + copies


def test_the_tail_that_holds_most_of_what_is_wanted_is_found() -> None:
    tails, there = PartialPages(), {(1, 2, 3), (1, 5), (7,)}

    def called(tokens: Sequence[int]) -> PageHash:
        return repr(tuple(tokens)).encode()

    def found(wanted: Sequence[int], before: PageHash = b"page") -> tuple[PageHash, int] | None:
        tail = tails.find(before, wanted, called, lambda name: name in set(map(called, there)))
        return None if tail is None else (tail.page_hash, tail.tokens)

    for tokens in ((1, 2, 3), (7,), (1, 5)):
        tails.add(b"page", called(tokens), tokens)
    assert found([1, 2, 3, 4]) == (called((1, 2, 3)), 3), "one that they begin with"
    assert found([1, 9]) == (called((1, 5)), 1), "as much as they have in common with the last one"
    assert found([1, 5]) == (called((1, 5)), 2)
    assert found([7, 7]) == (called((7,)), 1)
    assert found([2]) is None and found([]) is None and found([1, 5], b"another page") is None
    there.clear()
    assert found([1, 2, 3, 4]) is None, "their pages have made room"
    tails = PartialPages(capacity=2)
    there.add((1,))
    for page in (b"one", b"two", b"three"):
        tails.add(page, called((1,)), (1,))
    assert found([1], b"one") is None and found([1], b"three") == (called((1,)), 1)
