"""Embeddings on the emulated CUDA device have the reference's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuda_twin import CudaTwin, Pair
from ferrum.kernels.cuda.float_launches import FLOATS
from ferrum.kernels.interface import GivenRows, StepTables
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.dense import FORMATS, DenseWeight
from ferrum.quant.ordered_weight import OrderedWeight
from ferrum.runtime.known_answers import Inputs, fixed_weight, known_tables

IDS = np.array([0, 69, 31, 32, 5], np.int32)
INPUTS = Inputs()


@pytest.fixture(scope="module")
def twin() -> CudaTwin:
    return CudaTwin()


def table(twin: CudaTwin, format: str, columns: int) -> Pair:
    weight: Any
    if format in FORMATS:
        weight = DenseWeight(INPUTS.numbers(70, columns, at=3).astype(FORMATS[format]))
    else:
        weight = fixed_weight(BLOCK_FORMATS[format], (70, columns), INPUTS)
    return Pair(*(kernels.weight(weight) for kernels in twin.kernels))


def step(ids: np.ndarray) -> StepTables:
    return known_tables([(0, len(ids))], token_ids=ids)._replace(pages=())


SLOW = [pytest.param(name, marks=pytest.mark.cuda) for name in BLOCK_FORMATS if name not in (*FLOATS, "q8_0")]
"""Formats whose kernels `make test` does not compile."""


@pytest.mark.parametrize("format", [*FLOATS, "q8_0", *SLOW])
def test_rows_of_tokens_equal_the_reference(twin: CudaTwin, format: str) -> None:
    for columns in (200, 129, 1):
        twin.begin(step(IDS))
        twin.same("embed", table(twin, format, columns))
        twin.begin(step(IDS[2:]))
        twin.same("embed", table(twin, format, columns), 2.5)


def test_given_rows_replace_embeddings_of_tables_with_a_row_for_each_token(twin: CudaTwin) -> None:
    given = GivenRows(np.array([1, 3], np.int32), INPUTS.numbers(2, 200, at=9))
    twin.begin(step(IDS // 2)._replace(given=given))
    twin.same("embed", table(twin, "bfloat16", 200), 2.5)
    twin.same("embed", table(twin, "bfloat16", 200), 1.0, 2, 1)
    twin.begin(step(IDS))
    twin.same("embed", table(twin, "bfloat16", 200))


def test_stored_columns_return_to_the_order_of_the_inputs(twin: CudaTwin) -> None:
    order = np.random.default_rng(0).permutation(200).astype(np.int32)[None]
    weight = OrderedWeight(fixed_weight(BLOCK_FORMATS["q8_0"], (70, 200), INPUTS), order)
    twin.begin(step(IDS))
    twin.same("embed", Pair(*(kernels.weight(weight) for kernels in twin.kernels)))
