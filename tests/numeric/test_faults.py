"""Faults at every kernel call site: only the sequences that fail alone end, and nothing leaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tiny import directory_of, find, tokens_of

from ferrum.core.errors import NonFiniteLogits, StepError
from ferrum.core.step import Hidden, Rows, Span, SpanResult, StepBatch, Want
from ferrum.kernels.interface import Operations
from ferrum.runtime.load import load_executor

OPERATIONS = {name for name in vars(Operations) if not name.startswith("_")}
POISON = 5  # the token that only the guilty sequence holds


class FaultyKernels:
    """Kernels that misbehave at the n-th operation of each pass in which the guilty token takes part."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.site: int | None = None
        self.spoil: Callable[[Any], Any] | None = None
        self.calls = 0
        self.guilty: np.ndarray | None = None

    def begin(self, tables: Any) -> None:
        self.calls = 0
        rows = tables.token_ids == POISON
        spans = np.add.reduceat(rows, tables.span_rows[:-1]) > 0
        self.guilty = np.repeat(spans, np.diff(tables.span_rows))
        self.inner.begin(tables)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.inner, name)
        if name not in OPERATIONS:
            return attribute

        def call(*arguments: Any) -> Any:
            self.calls += 1
            made = attribute(*arguments)
            if self.calls - 1 != self.site or not self.guilty.any():
                return made
            return self.spoil(made)

        return call

    def raising(self, _: Any) -> Any:
        raise ZeroDivisionError("injected")

    def nan(self, made: Any) -> Any:
        """NaN in the guilty rows alone, whatever the operation made."""
        for array in made if isinstance(made, tuple) else (made,):
            if array.dtype == np.bool_:
                array[:] &= ~self.guilty[self.inner.tables.span_rows[:-1], None]
            elif len(array) == len(self.guilty):
                array[self.guilty] = np.nan
            elif len(array):
                array[self.guilty[self.inner.tables.logit_rows]] = np.nan
        return made


@pytest.fixture
def executor():
    with load_executor(directory_of(find("qwen3-windows")), kernels="reference", page_size=16) as made:
        faulty = FaultyKernels(made.lm.kernels)
        made.lm.kernels = faulty
        yield made


def spans_of(start: int) -> tuple[Span, ...]:
    innocent = [[t if t != POISON else 6 for t in tokens_of(find("qwen3-windows"), 30, seed)] for seed in (1, 2)]
    guilty = [*innocent[0][:15], POISON, *innocent[0][16:]]
    parts = {"a": innocent[0], "guilty": guilty, "b": innocent[1]}
    chunk = slice(0, 10) if start == 0 else slice(10, 30)
    wish = (Want.LOGITS, Rows.ALL, Hidden.ALL)
    return tuple(Span(name, start, tuple(tokens[chunk]), *wish) for name, tokens in parts.items())


def sites(executor: Any) -> int:
    executor.submit(StepBatch(spans_of(0))).result()
    count = executor.lm.kernels.calls
    executor.reset()
    return count


@pytest.mark.contract("5.no fallback answers with stale keys")
@pytest.mark.parametrize("kind", ["raising", "nan"])
def test_a_fault_at_any_call_site_ends_the_guilty_alone(executor, kind):
    faulty, pages = executor.lm.kernels, executor.lm.pages
    executor.submit(StepBatch(spans_of(0))).result()
    clean = executor.submit(StepBatch(spans_of(10))).result().results
    executor.reset()
    faulty.spoil = getattr(faulty, kind)
    total = sites(executor)
    assert total > 15
    for site in range(total):
        baseline = pages.used
        executor.submit(StepBatch(spans_of(0))).result()
        held = pages.used
        faulty.site = site
        first, guilty, last = executor.submit(StepBatch(spans_of(10))).result().results
        faulty.site = None
        assert isinstance(guilty, StepError | NonFiniteLogits), f"call {site}"
        for ours, expected in ((first, clean[0]), (last, clean[2])):
            assert isinstance(ours, SpanResult), f"call {site}: {ours}"
            np.testing.assert_array_equal(ours.logits, expected.logits)
        assert pages.length("guilty") == 10, "a failed span leaves its sequence as it was"
        pages.check()
        retried = executor.submit(StepBatch((spans_of(10)[1],))).result().results[0]
        np.testing.assert_array_equal(retried.logits, clean[1].logits)
        executor.reset()
        pages.check()
        assert pages.used == baseline < held


def test_a_fault_in_the_first_step_leaves_no_sequence_behind(executor):
    faulty = executor.lm.kernels
    faulty.spoil, faulty.site = faulty.raising, 3
    span = Span("guilty", 0, (1, POISON), Want.LOGITS)
    (result,) = executor.submit(StepBatch((span,))).result().results
    assert isinstance(result, StepError)
    assert "guilty" not in executor.lm.pages
    assert executor.lm.pages.used == 0
