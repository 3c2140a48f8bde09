"""Experts on the emulated CUDA device have the reference's bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cuda_twin import CudaTwin, Pair
from ferrum.core.errors import Unsupported
from ferrum.kernels.op_attributes import SILU, Activation, Routing
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.dense import FORMATS, DenseWeight
from ferrum.runtime.known_answers import Inputs, fixed_weight, known_tables

INPUTS = Inputs()
WIDTH, HIDDEN = 64, 32

ROUTINGS = (
    Routing(6, 2, renormalise=True),
    Routing(6, 3, "sigmoid", groups=3, kept_groups=2, group_best=2, renormalise=True, eps=1e-20, factor=2.5),
    Routing(5, 2, "sigmoid", late=True, on_input=True),
    Routing(5, 3, "sqrt_softplus", renormalise=True, least=2.0),
    Routing(40, 7, late=True),
    Routing(5, 2, "sigmoid", renormalise=True, least=4.0),
    Routing(72, 5, groups=9, kept_groups=4, group_best=3),
)


@pytest.fixture(scope="module")
def twin() -> CudaTwin:
    return CudaTwin()


def matrix(twin: CudaTwin, format: str, rows: int, columns: int, at: int) -> Pair:
    weight: Any
    if format in FORMATS:
        weight = DenseWeight(INPUTS.numbers(rows, columns, at=at).astype(FORMATS[format]))
    else:
        weight = fixed_weight(BLOCK_FORMATS[format], (rows, columns), INPUTS)
    return Pair(*(kernels.weight(weight) for kernels in twin.kernels))


def compare(
    twin: CudaTwin,
    routing: Routing,
    rows: int,
    formats: tuple[str, str, str] = ("float32",) * 3,
    activation: Activation = SILU,
    *,
    biased: bool = False,
) -> None:
    """Run experts on rows with ties of scores, and with a score that is not finite."""
    count = routing.num_experts
    x, scores = INPUTS.numbers(rows, WIDTH, at=4), np.rint(8 * INPUTS.numbers(rows, count, at=77))
    scores[5:6], scores[5:6, 0] = 0.0, -0.0
    scores[7:8, 1], scores[8:9, 0] = np.inf, np.nan
    sizes = (count * HIDDEN, WIDTH), (count * HIDDEN, WIDTH), (count * WIDTH, HIDDEN)
    matrices = [matrix(twin, format, *size, at) for at, (format, size) in enumerate(zip(formats, sizes, strict=True))]
    vectors: list[Pair | None] = [None] * 5
    if biased:
        lengths = (count, count, *(size[0] for size in sizes))
        vectors = [twin.vector(INPUTS.numbers(length, at=at)) for at, length in enumerate(lengths)]
    twin.begin(known_tables([(0, rows)])._replace(pages=()))
    twin.same("experts", x, scores, routing, *matrices, activation, *vectors)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_experts_of_each_routing_equal_the_reference(twin: CudaTwin, routing: Routing) -> None:
    compare(twin, routing, 9)
    compare(twin, routing, 9, activation=replace(SILU, sharpness=1.7, limit=0.75), biased=True)


def test_experts_of_one_row_and_of_many_equal_the_reference(twin: CudaTwin) -> None:
    for rows in (1, 130):
        for routing in ROUTINGS[1:3]:
            compare(twin, routing, rows, biased=True)


def test_matrices_of_different_formats_equal_the_reference(twin: CudaTwin) -> None:
    compare(twin, ROUTINGS[0], 9, ("bfloat16", "float32", "fp8"), biased=True)


@pytest.mark.cuda
@pytest.mark.parametrize("format", ["bfloat16", "float16", "fp8", "nf4", "q8_0", "q4_k", "mxfp4"])
def test_experts_of_each_format_equal_the_reference(twin: CudaTwin, format: str) -> None:
    for routing in ROUTINGS:
        compare(twin, routing, 9, (format,) * 3, biased=True)


@pytest.mark.cuda
def test_no_order_of_warps_changes_experts(twin: CudaTwin) -> None:
    for seed in range(100):
        twin.cuda.driver.seed(seed)
        compare(twin, ROUTINGS[seed % len(ROUTINGS)], 9, biased=True)


def test_more_experts_than_the_kernel_has_memory_for_are_refused(twin: CudaTwin) -> None:
    with pytest.raises(Unsupported, match="2048 experts"):
        compare(twin, Routing(2048, 2), 1)
