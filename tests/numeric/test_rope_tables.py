"""Rope tables that grow with the steps equal the tables of the reference."""

from __future__ import annotations

import numpy as np
import pytest

from ferrum.kernels.cpu.native_kernels import CHUNK, NativeKernels
from ferrum.kernels.reference import ReferenceKernels
from native_twin import TIERS, tables_of

FREQUENCIES = tuple(10000.0 ** -(i / 12) for i in range(12))
LENGTH = 3 * CHUNK + 7


@pytest.mark.skipif(not TIERS, reason="the table belongs to the native kernels")
@pytest.mark.parametrize("reached", [[0], [CHUNK - 1, CHUNK], [5, 2 * CHUNK + 1, 9], [LENGTH - 1]])
def test_rows_up_to_the_reached_position_equal_the_reference(reached: list[int]) -> None:
    whole = ReferenceKernels().rope_table(FREQUENCIES, 1.25, LENGTH)
    kernels = NativeKernels(threads=1)
    grown = kernels.rope_table(FREQUENCIES, 1.25, LENGTH)
    rng = np.random.default_rng(0)
    for position in reached:
        kernels.begin(tables_of(rng, [(position, 1), (0, 3)], ()))
        for ours, theirs in zip(grown, whole, strict=True):
            np.testing.assert_array_equal(ours[: position + 1], theirs[: position + 1])
    assert kernels.table_bytes == sum(table.nbytes for table in whole)
