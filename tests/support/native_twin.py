"""Native kernels and the reference on the same step, for conformance tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from ferrum.cache.page_table import PageCopy
from ferrum.core.errors import Unsupported
from ferrum.kernels.cpu.library import load, tiers
from ferrum.kernels.cpu.native_kernels import NativeKernels, NativeRowSampler
from ferrum.kernels.interface import PoolGroup, StatePool, StepTables
from ferrum.kernels.op_attributes import AttentionShape
from ferrum.kernels.reference import ReferenceKernels
from ferrum.sampling.backend_sampler import BackendSampler


def machine_tiers() -> tuple[str, ...]:
    """Return every tier of this machine; none only if no compiler could build the library."""
    try:
        return tiers()
    except Unsupported:
        if shutil.which(os.environ.get("CXX", "c++")) is not None:
            raise
        return ()


def require_native() -> None:
    if not machine_tiers():
        pytest.skip("there is no compiler, and so no native library")


TIERS = machine_tiers()
TEAMS = [(tier, threads) for tier in TIERS for threads in (1, 2)]


def with_teams(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return a team and values for each combination of a tier and values; the threads alternate along each axis."""
    places = product(*(range(len(axis)) for axis in (TIERS, *axes)))
    return [
        ((TIERS[place[0]], 1 + sum(place) % 2), *(axis[index] for axis, index in zip(axes, place[1:], strict=True)))
        for place in places
    ]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Assert that every number has the same bits; any NaN equals any other."""
    np.testing.assert_array_equal(ours, theirs)
    different = (np.signbit(ours) != np.signbit(theirs)) & ~np.isnan(ours)
    assert not different.any(), f"zeros of different signs at {np.argwhere(different)[:5].tolist()}"


def tables_of(
    rng: np.random.Generator,
    spans: list[tuple[int, int]],
    groups: tuple[PoolGroup, ...],
    logit_rows: tuple[int, ...] = (),
    hidden_rows: tuple[int, ...] = (),
    vocabulary: int = 1,
) -> StepTables:
    """Return tables of spans (start, count), each sequence on separate pages in random order."""
    rows = sum(count for _, count in spans)
    bounds = np.cumsum([0, *(count for _, count in spans)]).astype(np.int32)
    pages = []
    for group in groups:
        needed = [-(-(start + count) // group.page_size) for start, count in spans]
        free = iter(np.random.default_rng(7).permutation(group.num_pages))
        table = np.full((len(spans), max(needed)), -1, np.int32)
        for span, count in enumerate(needed):
            table[span, :count] = [next(free) for _ in range(count)]
        pages.append(table)
    return StepTables(
        token_ids=rng.integers(0, vocabulary, rows).astype(np.int32),
        positions=np.concatenate([np.arange(a, a + n) for a, n in spans]).astype(np.int32),
        span_rows=bounds,
        pages=tuple(pages),
        logit_rows=np.array(logit_rows, np.int32),
        hidden_rows=np.array(hidden_rows, np.int32),
    )


@cache
def sampler_of(tier: str, threads: int) -> BackendSampler:
    """Return a native sampler with a separate team."""
    library = load()
    return BackendSampler(NativeRowSampler(library, library.Runtime(tier, threads)), np.asarray)


class Twin:
    """One native team and the reference, with equal pools."""

    def __init__(self, tier: str, threads: int, *groups: PoolGroup, states: StatePool | None = None) -> None:
        self.native = NativeKernels(tier, threads)
        self.reference = ReferenceKernels()
        for kernels in (self.native, self.reference):
            kernels.allocate(groups, states)

    def begin(self, tables: StepTables) -> None:
        for kernels in (self.native, self.reference):
            kernels.begin(tables)

    def copy(self, *copies: PageCopy) -> None:
        for kernels in (self.native, self.reference):
            kernels.copy_pages(copies)

    def both(self, name: str, *arguments: Any) -> tuple[Any, Any]:
        """Return the (native, reference) results of an operation, with weights packed for the native one."""
        packed = tuple(self._packed(argument) for argument in arguments)
        return getattr(self.native, name)(*packed), getattr(self.reference, name)(*arguments)

    def _packed(self, argument: Any) -> Any:
        if isinstance(argument, tuple):
            return tuple(map(self._packed, argument))
        return self.native.weight(argument) if hasattr(argument, "matmul") else argument


def group_of(dim: int, kv_heads: int, format: str, page_size: int = 64, pages: int = 40, layers: int = 1) -> PoolGroup:
    return PoolGroup("group", pages, page_size, layers, kv_heads, dim, dim, format)


def shape_of(group: PoolGroup, share: int, window: int | None = None, layer: int = 0) -> AttentionShape:
    dim, heads = group.key_dim, group.num_kv_heads
    return AttentionShape(0, layer, heads * share, heads, dim, dim**-0.5, window)
