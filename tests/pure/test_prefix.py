"""The prefix cache: page hashes, lookups, and eviction order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from ferrum.cache.page_hashes import PartialPages, PrefixScope
from ferrum.cache.page_table import PageCopy, PageGroup, PageTable
from ferrum.cache.pool import PageHash
from ferrum.core.snapshots import PrefixCounts
from ferrum.core.step import AdapterUse, Inputs

SIZE = 4
SCOPE = PrefixScope(model="m", weights="bfloat16", kv_format="bfloat16", page_size=SIZE, numerics_id="n")


def hashes_of(tokens: Sequence[int], scope: PrefixScope = SCOPE, **owner: Any) -> list[PageHash]:
    page_hashes: list[PageHash] = []
    scope.extend(page_hashes, scope.root(**{"tenant": "", "salt": "", **owner}), tokens)
    return page_hashes


def table(num_pages: int = 12, window: int | None = None) -> PageTable:
    return PageTable([PageGroup("main", num_pages, SIZE, window)], max_draft=0)


def run(pages: PageTable, cache_id: str, tokens: Sequence[int], *, step: int = 100, publish: bool = True) -> int:
    """Compute a sequence on top of its cached prefix, and return the cached tokens."""
    page_hashes = hashes_of(tokens)
    found = pages.match(page_hashes)
    pages.adopt(cache_id, page_hashes, found)
    while pages.length(cache_id) < len(tokens):
        length = min(len(tokens), pages.length(cache_id) + step)
        assert pages.reserve(cache_id, length)
        pages.commit(cache_id, length)
    if publish:
        pages.publish(cache_id)
    pages.check()
    return found * SIZE


def test_page_hash_depends_on_scope_tenant_and_salt() -> None:
    tokens = range(SIZE)
    fields = {"model": "x", "weights": "x", "kv_format": "x", "page_size": 2, "numerics_id": "x"}
    scopes = [SCOPE, *(replace(SCOPE, **{name: value}) for name, value in fields.items())]
    owners: list[dict[str, Any]] = [
        {},
        {"tenant": "a"},
        {"salt": "a"},
        {"tenant": "ab", "salt": "c"},
        {"tenant": "a", "salt": "bc"},
    ]
    first = [hashes_of(tokens, scope)[0] for scope in scopes]
    first += [hashes_of(tokens, **owner)[0] for owner in owners[1:]]
    first += [hashes_of([0, 1, 2, 4])[0], hashes_of([1, 0, 2, 3])[0]]
    assert all(one != other for one, other in combinations(first, 2))


def test_page_hash_depends_on_given_rows_and_their_places() -> None:
    """The tokens are the same everywhere: placeholders."""

    def named(*inputs: Inputs) -> list[PageHash]:
        page_hashes: list[PageHash] = []
        SCOPE.extend(page_hashes, SCOPE.root(tenant="", salt=""), [7] * 3 * SIZE, inputs)
        return page_hashes

    def image(positions: Sequence[int], digest: bytes) -> Inputs:
        return Inputs(tuple(positions), [None] * len(positions), digest)

    places = ((5, 6), (6, 7), (5, 7), (5,), (5, 6, 9), (4, 5, 6))
    inputs = [(), *((image(each, b"one"),) for each in places), (image((5, 6), b"other"),)]
    inputs += [(image((5,), b"one"), image((6,), b"one")), (image((5,), b"one"), image((6,), b"other"))]
    pages = [named(*each) for each in inputs]
    assert len({page[0] for page in pages}) == 1, "the rows begin in the second page"
    second = [page[1] for page in pages]
    assert second[1] == second[5], "the row at position 9 is in the third page"
    assert len(set(second)) == len(second) - 1
    assert named(image((5, 6), b"one")) == named(image((5, 6), b"one"))


def test_page_hash_depends_on_adapters_from_the_page_on_in_which_they_begin() -> None:
    def named(*adapters: AdapterUse) -> list[PageHash]:
        page_hashes: list[PageHash] = []
        SCOPE.extend(page_hashes, SCOPE.root(tenant="", salt=""), [7] * 3 * SIZE, (), adapters)
        return page_hashes

    one, other = AdapterUse("a", start=SIZE + 1), AdapterUse("b", start=SIZE + 1)
    uses = [(), (one,), (other,), (AdapterUse("a", 0.5, SIZE + 1),), (AdapterUse("a", start=SIZE + 2),)]
    uses += [(one, other), (other, one), (AdapterUse("a", start=SIZE),), (AdapterUse("a", start=2 * SIZE),)]
    pages = [named(*each) for each in uses]
    assert len({page[0] for page in pages}) == 1, "they begin in the second page"
    assert pages[-1][1] == pages[0][1], "the last one begins in the third page"
    assert len({page[1] for page in pages}) == len(pages) - 1
    assert len({page[2] for page in pages}) == len(pages)
    first = named(AdapterUse("a"))
    assert not {*first} & {page for each in pages for page in each}


def test_page_hash_depends_on_position_and_previous_tokens() -> None:
    twice, after = hashes_of([1, 2, 3, 4] * 2), hashes_of([9, 9, 9, 9, 1, 2, 3, 4])
    assert len({*twice, *after}) == 4


def test_only_full_pages_have_hashes_and_hashes_grow_with_the_tokens() -> None:
    tokens = list(range(3 * SIZE))
    whole, root = hashes_of(tokens), SCOPE.root(tenant="", salt="")
    page_hashes: list[PageHash] = []
    for length in range(len(tokens) + 1):
        SCOPE.extend(page_hashes, root, tokens[:length])
        assert page_hashes == whole[: length // SIZE]


def test_pages_are_found_while_their_sequence_runs_and_after_it_ends() -> None:
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


def test_pages_are_found_only_after_publication() -> None:
    pages = table()
    tokens = list(range(8))
    run(pages, "a", tokens, publish=False)
    assert pages.match(hashes_of(tokens)) == 0
    pages.release("a")
    assert pages.match(hashes_of(tokens)) == 0 and pages.free("main") == 12
    assert pages.prefix_counts() == PrefixCounts()


def test_equal_pages_are_kept_once() -> None:
    pages = table()
    tokens = list(range(8))
    run(pages, "a", tokens, publish=False)
    run(pages, "b", tokens, publish=False)
    pages.publish("b")
    pages.publish("a")
    pages.release("a")
    pages.release("b")
    pages.check()
    assert pages.prefix_counts().cached_pages == 2


def test_idle_pages_are_free_and_evicted_least_recently_used_first_from_the_end() -> None:
    pages = table(num_pages=6)
    old, new = list(range(100, 112)), list(range(200, 212))
    for tokens in (old, new):
        run(pages, "x", tokens)
        pages.release("x")
    assert (pages.used, pages.free("main")) == (0, 6)
    pages.adopt("again", hashes_of(old), 1)  # the old prefix is used again
    pages.release("again")
    assert pages.reserve("c", 2 * SIZE)
    assert (pages.match(hashes_of(old)), pages.match(hashes_of(new))) == (1, 3)
    assert pages.reserve("c", 3 * SIZE)
    assert (pages.match(hashes_of(old)), pages.match(hashes_of(new))) == (1, 2)
    assert pages.prefix_counts() == PrefixCounts(cached_pages=3, evicted_pages=3)
    pages.check()


def test_owned_pages_are_never_evicted() -> None:
    pages = table(num_pages=3)
    run(pages, "a", list(range(12)))
    assert not pages.reserve("b", 1)
    assert pages.match(hashes_of(range(12))) == 3


def test_hashed_page_is_copied_before_a_write() -> None:
    pages = table()
    tokens = list(range(8))
    run(pages, "a", tokens)
    pages.truncate("a", 6)
    before = list(pages.row("a", "main"))
    assert pages.reserve("a", 7)
    after = list(pages.row("a", "main"))
    assert pages.match(hashes_of(tokens)) == 2, "the source of the copy can still be found"
    pages.check()
    assert pages.take_copies() == (PageCopy("main", before[1], after[1]),)
    pages.check()
    edited = [*tokens[:6], 90, 91]
    pages.label("a", hashes_of(edited))
    assert pages.reserve("a", 8)
    pages.commit("a", 8)
    pages.publish("a")
    pages.release("a")
    assert pages.match(hashes_of(tokens)) == pages.match(hashes_of(edited)) == 2


def test_window_adopts_only_what_the_next_query_sees() -> None:
    pages = table(num_pages=40, window=6)
    tokens = list(range(32))
    run(pages, "a", tokens, step=SIZE)
    pages.release("a")
    pages.adopt("b", hashes_of(tokens), pages.match(hashes_of(tokens)))
    assert pages.length("b") == 32
    # Position 32 sees the keys from 27 on: the last two pages.
    assert [page >= 0 for page in pages.row("b", "main")] == [False] * 6 + [True] * 2
    assert not pages.can_truncate("b", 28)
    pages.check()


def test_prefix_needs_the_window_at_its_end() -> None:
    pages = PageTable([PageGroup("full", 40, SIZE), PageGroup("window", 6, SIZE, 6)], max_draft=0)
    tokens = list(range(32))
    run(pages, "a", tokens, step=SIZE)
    assert pages.match(hashes_of(tokens)) == 8
    assert pages.match(hashes_of(tokens[:12])) < 3, "those pages have left the window and were reused"
    pages.release("a")
    pages.check()


def test_reset_removes_every_prefix() -> None:
    pages = table()
    run(pages, "a", list(range(8)))
    pages.release("a")
    run(pages, "b", list(range(50, 58)))
    pages.reset()
    pages.check()
    assert pages.match(hashes_of(range(8))) == 0 and pages.prefix_counts().cached_pages == 0
    assert pages.free("main") == 12 and pages.ids() == ()


@pytest.mark.parametrize("copies", [1, 2])
def test_fork_shares_hashed_pages_and_publishes_its_own(copies: int) -> None:
    pages = table(num_pages=20)
    tokens = list(range(6))
    run(pages, "a", tokens)
    for index in range(copies):
        fork, own = f"f{index}", [*tokens, *range(90 + 10 * index, 94 + 10 * index)]
        pages.fork("a", fork)
        pages.label(fork, hashes_of(own))
        assert pages.reserve(fork, 10)
        pages.take_copies()
        pages.commit(fork, 10)
        pages.publish(fork)
        assert pages.match(hashes_of(own)) == 2
        pages.check()
    assert pages.prefix_counts().cached_pages == 1 + copies


def test_longest_matching_partial_page_is_found() -> None:
    partial_pages, there = PartialPages(), {(1, 2, 3), (1, 5), (7,)}

    def hash_page(tokens: Sequence[int]) -> PageHash:
        return repr(tuple(tokens)).encode()

    def found(tokens: Sequence[int], before: PageHash = b"page") -> tuple[PageHash, int] | None:
        match = partial_pages.find(before, tokens, hash_page, lambda name: name in set(map(hash_page, there)))
        return None if match is None else (match.page_hash, match.tokens)

    for tokens in ((1, 2, 3), (7,), (1, 5)):
        partial_pages.add(b"page", hash_page(tokens), tokens)
    assert found([1, 2, 3, 4]) == (hash_page((1, 2, 3)), 3), "a page that the tokens start with"
    assert found([1, 9]) == (hash_page((1, 5)), 1), "the common part with the last page"
    assert found([1, 5]) == (hash_page((1, 5)), 2)
    assert found([7, 7]) == (hash_page((7,)), 1)
    assert found([2]) is None and found([]) is None and found([1, 5], b"another page") is None
    there.clear()
    assert found([1, 2, 3, 4]) is None, "the pages are evicted"
    partial_pages = PartialPages(capacity=2)
    there.add((1,))
    for page in (b"one", b"two", b"three"):
        partial_pages.add(page, hash_page((1,)), (1,))
    assert found([1], b"one") is None and found([1], b"three") == (hash_page((1,)), 1)
