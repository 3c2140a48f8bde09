"""Tokens of steps in flight: their places in the tables of a later step, and their use by every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ferrum.cache.page_table import PageGroup, PageTable
from ferrum.core.params import SamplingParams
from ferrum.core.step import CARRY, Sampling, Span
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.kernels.interface import Carried, StepTables, StepTokens
from ferrum.kernels.reference import ReferenceKernels
from ferrum.quant.dense import DenseWeight
from ferrum.runtime.step_tables import DecodeTables, Piece, stage
from late_backend import LateKernels
from native_twin import TIERS, normal, tables_of
from toy_backend import Rows, ToyKernels

VOCABULARY, HIDDEN = 50, 16
BACKENDS: dict[str, Callable[[], Any]] = {
    "reference": ReferenceKernels,
    "toy": ToyKernels,
    "late": LateKernels,
    **{tier: lambda tier=tier: NativeKernels(tier, 2) for tier in TIERS},
}


def step_of(tokens: Any) -> StepTokens:
    step = StepTokens()
    step.tokens = tokens
    return step


def carried_of(rows: list[int], spans: list[int], step: StepTokens) -> Carried:
    return Carried(np.array(rows, np.int32), np.array(spans, np.int32), step)


def fault_of(kernels: Any, held: Callable[[np.ndarray], Any]) -> str | None:
    """Return what is wrong with a backend's use of `StepTables.carried`: the rows of two steps, and what they held."""
    rng = np.random.default_rng(3)
    kernels.allocate(())
    table = kernels.weight(DenseWeight(normal(rng, VOCABULARY, HIDDEN)))
    known = tables_of(rng, [(0, 3), (4, 1), (7, 1)], (), vocabulary=VOCABULARY)
    ids = known.token_ids.copy()
    first, last = step_of(held(ids[[4, 0]].reshape(2, 1))), step_of(np.array([9, 9, ids[3]], np.int32))
    known.token_ids[[0, 3, 4]] = CARRY
    tables = known._replace(carried=(carried_of([4, 0], [0, 1], first), carried_of([3], [2], last)))
    kernels.begin(tables)
    found = kernels.host(kernels.embed(table)).copy()
    kernels.begin(known._replace(token_ids=ids))
    right = np.array_equal(found, kernels.host(kernels.embed(table)))
    return None if right else f"StepTables.carried has no effect on the {kernels.name} kernels"


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_takes_carried_tokens(name: str) -> None:
    """The tokens may be an array of the backend, or one of the host."""
    held = Rows if name in ("toy", "late") else np.asarray
    assert fault_of(BACKENDS[name](), held) is None


def test_a_backend_that_forgets_them_is_named() -> None:
    class Forgetful(ReferenceKernels):
        name = "forgetful"

        def begin(self, tables: StepTables) -> None:
            super().begin(tables._replace(carried=()))

    assert fault_of(Forgetful(), np.asarray) == "StepTables.carried has no effect on the forgetful kernels"


@pytest.fixture
def pages() -> PageTable:
    pages = PageTable([PageGroup("full", 16, 4)])
    for name in "abcd":
        assert pages.reserve(name, 8)
        pages.commit(name, 4)
    return pages


def test_a_pass_takes_tokens_of_several_steps_and_known_ones(pages: PageTable) -> None:
    first, second = StepTokens(), StepTokens()
    tokens = {"a": (7, 8), "b": (CARRY,), "c": (CARRY, 5), "d": (CARRY,)}
    pieces = [Piece(name, 4, ids, range(0), range(0), range(len(ids))) for name, ids in tokens.items()]
    tables = stage(pieces, pages, sources={"b": (second, 3), "c": (first, 1), "d": 44})
    assert tables.token_ids.tolist() == [7, 8, CARRY, CARRY, 5, 44]
    assert [(each.rows.tolist(), each.spans.tolist()) for each in tables.carried] == [([2], [3]), ([3], [1])]
    assert [each.step for each in tables.carried] == [second, first]


def test_decodes_take_each_token_of_the_step_before_where_it_was(pages: PageTable) -> None:
    sampling, names = Sampling(SamplingParams(), 0, 1, [1]), "abcd"
    spans = [Span(name, 4, (7,), sampling=sampling) for name in names]
    last = StepTokens()
    staged = stage([Piece(name, 4, (7,), range(1), range(0), range(1)) for name in names], pages)
    tables = DecodeTables(spans, staged, pages, last)
    following = [Span(name, 5, (CARRY if name in "bd" else 9,), sampling=sampling) for name in names]
    assert DecodeTables(spans, staged, pages).follow(following, 1, 100, 64) is None, "no step is in flight"
    found = tables.follow(following, 1, 100, 64)
    assert found is not None and found.token_ids.tolist() == [9, CARRY, 9, CARRY]
    ((rows, places, step),) = found.carried
    assert rows.tolist() == places.tolist() == [1, 3] and step is last
    known = tables.follow([Span(name, 6, (9,), sampling=sampling) for name in names], 2, 100, 64)
    assert known is not None and known.carried == ()
