"""Given rows in the scheduler: which spans have them, and which prompts share pages."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from ferrum.core.step import Inputs
from ferrum.core.types import Adapter
from scheduler_bench import Bench

PROMPT = (1, 2, *(7,) * 12, 3, 4, 5)


def image(digest: bytes, positions: range = range(2, 14)) -> dict[str, Any]:
    return {"inputs": (Inputs(tuple(positions), [*positions], digest),)}


def cached(bench: Bench, *options: dict[str, Any]) -> list[int]:
    """Return the cached tokens of prompts that run one after the other."""
    for number, each in enumerate(options):
        bench.add_prompt(f"r{number}", PROMPT, max_tokens=2, **each)
        bench.run()
    return [bench.events[f"r{number}", 0][-1].cached_tokens for number in range(len(options))]


def test_equal_rows_share_pages_and_others_share_none_that_holds_any() -> None:
    one, other = image(b"one"), image(b"other")
    assert cached(Bench(prefixes=True), one, other, one, other, {}) == [0, 0, 16, 16, 0]


def test_pages_before_the_rows_are_shared() -> None:
    one, other = image(b"one", range(9, 14)), image(b"other", range(9, 14))
    assert cached(Bench(prefixes=True), one, other, {}) == [0, 8, 8]


@pytest.mark.parametrize(("first", "second"), list(product([{}, image(b"one"), image(b"other")], repeat=2)))
def test_a_partial_page_with_rows_is_not_shared(first: dict[str, Any], second: dict[str, Any]) -> None:
    bench = Bench(prefixes=True)
    for name, options in (("a", first), ("b", second)):
        bench.add_prompt(name, PROMPT[:7], max_tokens=1, **options)
        bench.run()
    expected = (6 if not first else 4) if first == second else 0
    assert bench.events["b", 0][-1].cached_tokens == expected


def test_each_chunk_has_its_own_rows() -> None:
    bench = Bench(budget=5)
    bench.add_prompt("a", PROMPT, max_tokens=3, **image(b"one"))
    spans = [span for step in bench.run() for span in step]
    assert [(span.start, span.end) for span in spans] == [(0, 5), (5, 10), (10, 15), (15, 17), (17, 18), (18, 19)]
    given = [[(each.positions, each.rows) for each in span.inputs] for span in spans]
    assert given == [
        [((2, 3, 4), [2, 3, 4])],
        [((5, 6, 7, 8, 9), [5, 6, 7, 8, 9])],
        [((10, 11, 12, 13), [10, 11, 12, 13])],
        [],
        [],
        [],
    ]
    assert [span.extras is None for span in spans] == [False] * 3 + [True] * 3


def test_an_adapter_that_is_loaded_again_finds_no_pages_of_the_old_one() -> None:
    old, new = ({"adapters": (Adapter("mine", digest),)} for digest in (b"old", b"new"))
    assert cached(Bench(prefixes=True), old, new, old) == [0, 0, 16]
