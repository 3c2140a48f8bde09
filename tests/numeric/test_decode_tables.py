"""Kept tables of decode steps follow every change of the page table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.core.params import SamplingParams
from ferrum.core.step import Sampling, Span
from ferrum.runtime.step_tables import DecodeTables, Piece, stage
from span_kit import EXTRAS, special

SAMPLING = Sampling(SamplingParams(), 0, 1, [1])
SIZE = 4


def decode(start: int) -> Span:
    return Span("a", start, (7,), sampling=SAMPLING)


@pytest.fixture
def pages() -> PageTable:
    pages = PageTable([PageGroup("full", 16, SIZE), PageGroup("window", 16, SIZE, 5)])
    assert pages.reserve("a", 6)
    pages.commit("a", 6)
    return pages


def kept(pages: PageTable, start: int) -> DecodeTables:
    assert pages.reserve("a", start + 1)
    return DecodeTables([decode(start)], stage([Piece("a", start, (7,), range(1), range(0), range(1))], pages), pages)


def test_rows_grow_with_the_sequence(pages: PageTable) -> None:
    tables = kept(pages, 6)
    for start in range(7, 30):
        pages.commit("a", start)
        found = tables.follow([decode(start)], 0, 100, 64)
        assert found is not None and found.positions.tolist() == [start]
        for group, table in zip(pages.groups, found.pages, strict=True):
            row = list(pages.row("a", group.name))
            assert table[0, : len(row)].tolist() == row
            assert (table[0, len(row) :] == -1).all()


def test_a_sequence_that_began_again_has_its_new_rows(pages: PageTable) -> None:
    """A preempted sequence may return with cached pages, and go on decoding where it was."""
    tables = kept(pages, 6)
    pages.commit("a", 7)
    assert tables.follow([decode(7)], 0, 100, 64) is not None
    pages.commit("a", 8)
    pages.fork("a", "b")
    before = list(pages.row("a", "full"))
    pages.release("a")
    assert pages.reserve("other", 30)
    pages.fork("b", "a")
    assert pages.reserve("a", 9)
    found = tables.follow([decode(8)], 0, 100, 64)
    assert found is not None
    row = list(pages.row("a", "full"))
    assert row != before and found.pages[0][0, : len(row)].tolist() == row


@pytest.mark.parametrize(
    "spans",
    [
        [decode(8)],
        [Span("b", 7, (7,), sampling=SAMPLING)],
        [Span("a", 7, (7,), sampling=Sampling(SamplingParams(), 0, 1, [1]))],
        [Span("a", 7, (7, 8), sampling=SAMPLING)],
        [Span("a", 7, (100,), sampling=SAMPLING)],
        [Span("a", 7, (np.int32(7),), sampling=SAMPLING)],  # type: ignore[arg-type]
        [decode(7), Span("b", 7, (7,), sampling=SAMPLING)],
        *[[replace(decode(7), extras=special(field))] for field in EXTRAS],
    ],
)
def test_any_other_step_is_not_followed(pages: PageTable, spans: list[Span]) -> None:
    tables = kept(pages, 6)
    pages.commit("a", 7)
    assert tables.follow(spans, 0, 100, 64) is None
