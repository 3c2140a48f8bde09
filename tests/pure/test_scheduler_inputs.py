"""Given rows in the scheduler: which spans have them, and which prompts share pages."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from ferrum.core.errors import RequestError
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


# ---- Blocks: rows that see each other ----


def block(positions: range = range(2, 14), digest: bytes = b"one") -> dict[str, Any]:
    return {"inputs": (Inputs(tuple(positions), [*positions], digest, positions),)}


@pytest.mark.parametrize(
    ("budget", "ends"), [(12, [2, 14, 17]), (13, [2, 15, 17]), (14, [14, 17]), (16, [16, 17]), (17, [17])]
)
def test_chunks_end_before_a_block_or_after_it(budget: int, ends: list[int]) -> None:
    bench = Bench(budget=budget)
    bench.add_prompt("a", PROMPT, max_tokens=1, **block())
    assert [span.end for step in bench.run() for span in step] == ends


def test_a_block_that_no_step_holds_is_refused_with_the_option() -> None:
    with pytest.raises(
        RequestError, match=r"image of 12 tokens.* longer than a step of 11 tokens \(raise --max-tokens-per-step"
    ):
        Bench(budget=11).add_prompt("a", PROMPT, max_tokens=1, **block())


def test_pages_that_end_in_a_block_are_not_adopted_without_the_rest_of_it() -> None:
    bench = Bench(prefixes=True)
    for name, length in (("whole", 17), ("again", 17), ("until the end", 14)):  # the last token of a prompt always runs
        bench.add_prompt(name, PROMPT[:length], max_tokens=2, **block(range(6, 14)))
        bench.run()
    assert [bench.events[name, 0][-1].cached_tokens for name in ("whole", "again", "until the end")] == [0, 16, 4]


def test_sequences_that_decode_make_room_for_a_block() -> None:
    bench = Bench(budget=8, max_sequences=8)
    for number in range(6):
        bench.add(f"d{number}", 2, seed=number, max_tokens=40)
    bench.step()
    bench.step()
    bench.add_prompt("a", PROMPT[:12], max_tokens=1, **block(range(2, 10)))
    steps = [[(span.cache_id, span.end) for span in bench.step()] for _ in range(4)]
    assert [step for step in steps if ("a/0", 10) in step] == [[("a/0", 10)]]
    assert sum(len(step) for step in steps) == 3 * 6 + 3, "the others decode in all other steps"


def test_choices_share_a_prompt_until_the_block_that_ends_it() -> None:
    bench = Bench()
    bench.add_prompt("a", PROMPT[:14], max_tokens=2, n=3, **block())
    spans = [(span.cache_id, span.start, span.end) for step in bench.run() for span in step if span.start < 14]
    assert sorted(spans) == [("a/0", 0, 14), ("a/1", 2, 14), ("a/2", 2, 14)]
