"""Rows that see each other: equal bits in any cut that leaves a block whole, on all kernels, and refusals of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import ferrum.runtime.load
from ferrum.core.errors import RequestError, Unsupported
from ferrum.core.step import Hidden, Inputs, Rows, Span, SpanExtras, StepBatch, Want
from ferrum.verbs.load_executor import load_executor
from image_models import seeing_directory
from native_twin import require_native, same_bits

TOKENS = tuple(int(token) for token in np.random.default_rng(2).integers(2, 90, 120))
BLOCKS = range(3, 50), range(51, 60), range(60, 61), range(70, 118)
CUTS = (), (3, 50, 118), (2, 60, 61, 70), (50, 51, 60, 69, 118, 119)


def inputs_of(seed: int = 0) -> tuple[Inputs, ...]:
    rng = np.random.default_rng(seed)
    rows = [rng.normal(0, 0.3, (len(block), 48)).astype(np.float32) for block in BLOCKS]
    return tuple(Inputs(tuple(block), each, b"%d" % seed, block) for block, each in zip(BLOCKS, rows, strict=True))


@contextmanager
def executor_of(name: str, kernels: str, **options: Any) -> Iterator[Any]:
    if kernels == "native":
        require_native()
    with load_executor(
        str(seeing_directory(name)), kernels=kernels, kv_capacity=1024, page_size=16, **options
    ) as found:
        yield found


def span_of(start: int, end: int, inputs: tuple[Inputs, ...], **fields: Any) -> Span:
    given = tuple(part for each in inputs for part in each.within(start, end))
    extras = SpanExtras(inputs=given).or_none()
    span = Span("it", start, TOKENS[start:end], Want.LOGITS, Rows.ALL, Hidden.ALL, extras=extras)
    return replace(span, **fields)


def rows_of(executor: Any, cuts: tuple[int, ...], inputs: tuple[Inputs, ...], *, company: bool = False) -> np.ndarray:
    """Return the logits and hidden states of all tokens, next to a plain sequence that has equal cuts, if any."""
    found = []
    for start, end in pairwise((0, *cuts, len(TOKENS))):
        spans = [span_of(start, end, inputs)]
        if company:
            spans.insert(0, span_of(start, end, (), cache_id="plain"))
        result = executor.submit(StepBatch(tuple(spans))).result().results[-1]
        assert not isinstance(result, Exception), result
        found.append(np.concatenate([result.logits, result.hidden], axis=1))
    return np.concatenate(found)


@pytest.mark.parametrize(
    ("name", "kv_dtype"),
    [("gemma3", "float32"), ("gemma3-narrow", "bfloat16"), ("gemma3-narrow", "int8"), ("gemma4", "float32")],
)
def test_any_cut_around_blocks_gives_the_same_bits_on_all_kernels(name: str, kv_dtype: str) -> None:
    inputs, expected = inputs_of(), None
    for kernels, several in (("reference", CUTS[1:2]), ("native", CUTS)):
        for number, cuts in enumerate(several):
            with executor_of(name, kernels, kv_dtype=kv_dtype) as executor:
                found = rows_of(executor, cuts, inputs, company=number % 2 == 1)
            expected = found if expected is None else expected
            same_bits(found, expected)


def test_a_block_is_computed_again_where_a_pass_has_no_room_for_its_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    with executor_of("gemma3", "native") as executor:
        expected = rows_of(executor, (), inputs_of())
    monkeypatch.setattr(ferrum.runtime.load, "_LOGIT_BYTES", 0)  # then the rows of the longest draft
    for cuts in CUTS[:2]:
        with executor_of("gemma3", "native", max_rows=48) as executor:
            same_bits(rows_of(executor, cuts, inputs_of(), company=True), expected)


def test_rows_see_the_rest_of_their_block_and_nothing_after_it() -> None:
    inputs = inputs_of()
    changed = inputs[0].rows.copy()
    changed[-1] += 1
    others = (replace(inputs[0], rows=changed), *inputs[1:])
    with executor_of("gemma3", "reference") as executor:
        before = rows_of(executor, (), inputs)
    with executor_of("gemma3", "reference") as executor:
        after = rows_of(executor, (), others)
    differs = (before != after).any(axis=1)
    assert not differs[:3].any() and differs[3:].all()


@pytest.mark.parametrize(
    ("start", "end", "change", "words"),
    [
        (0, 49, {}, "positions 3 to 49 that see each other: send all of them in one span"),
        (0, 55, {}, "positions 51 to 59"),
        (0, 50, {"block": range(3, 51)}, "positions 3 to 50"),
        (0, 50, {"block": range(4, 50)}, "all of them in the block"),
        (0, 50, {"block": (3, 50)}, "all of them in the block"),
    ],
)
def test_spans_that_cut_a_block_are_refused_by_name(start: int, end: int, change: dict[str, Any], words: str) -> None:
    first, *others = inputs_of()
    inputs = (replace(first, **change), *others)
    with executor_of("gemma3", "reference") as executor:
        error = executor.submit(StepBatch((span_of(start, end, inputs),))).result().results[0]
        assert isinstance(error, RequestError) and error.param == "inputs" and words in str(error)


def test_a_span_that_begins_in_a_block_and_drafts_in_one_are_refused() -> None:
    inputs = inputs_of()
    with executor_of("gemma3", "reference") as executor:
        executor.submit(StepBatch((span_of(0, 20, ()),))).result()
        begun = span_of(20, 50, inputs)
        drafted = span_of(0, 50, inputs, cache_id="drafted")
        drafted = replace(drafted, extras=replace(drafted.extras, drafts=2))
        for error in executor.submit(StepBatch((begun, drafted))).result().results:
            assert isinstance(error, RequestError) and "send all of them in one span" in str(error)


def test_a_truncation_among_rows_that_see_each_other_is_refused() -> None:
    with executor_of("gemma3", "reference") as executor:
        executor.submit(StepBatch((span_of(0, 60, inputs_of()),))).result()
        with pytest.raises(Unsupported, match="rows 51 to 59 see each other: truncate to 51"):
            executor.truncate_kv_for_cache_id("it", 55)
        executor.truncate_kv_for_cache_id("it", 51)
        error = executor.submit(StepBatch((span_of(51, 61, inputs_of()),))).result().results[0]
        assert not isinstance(error, Exception), error


def test_blocks_that_are_longer_than_a_pass_are_refused_with_the_limit() -> None:
    with executor_of("gemma3", "reference", max_rows=47) as executor:
        error = executor.submit(StepBatch((span_of(0, 120, inputs_of()),))).result().results[0]
        assert isinstance(error, RequestError) and "48 rows that see each other, more than a pass of 47" in str(error)
