"""Products of float weights on the emulated CUDA device have the reference's bits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from emulated_cuda import emulated_kernels
from ferrum.kernels.cuda import float_launches
from ferrum.kernels.cuda.cuda_kernels import CudaKernels
from ferrum.kernels.cuda.device_memory import DeviceRows
from ferrum.kernels.cuda.float_launches import FLOATS, float_products
from ferrum.kernels.cuda.launches import Operand
from ferrum.kernels.cuda.products import Groups, Product
from ferrum.kernels.curves import curve
from ferrum.kernels.op_attributes import SILU
from ferrum.kernels.operations import F32, Weight
from ferrum.kernels.reference import ReferenceKernels
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import RowWeight
from ferrum.quant.dense import FORMATS, DenseWeight
from ferrum.runtime.known_answers import Inputs, fixed_weight

OUTPUTS = 70  # two panels and a part

SMALL = ((-52, -52), (-90, -30), (-30, -90), (-126, 0), (40, -131))
"""Exponents of inputs and weights whose products are near the smallest normal number, 2^-126."""

INPUTS = Inputs()
kernels = cache(emulated_kernels)


def matrix(format: str, outputs: int, depth: int, at: int = 0, exponent: int = 0) -> Weight:
    if format in BLOCK_FORMATS:
        weight = fixed_weight(BLOCK_FORMATS[format], (outputs, depth), INPUTS)
        if not isinstance(weight, RowWeight):
            return weight
        return replace(weight, whole=replace(weight.whole, d=spread(weight.whole.d, exponent)))
    return DenseWeight(spread(INPUTS.numbers(outputs, depth, at=at), exponent).astype(FORMATS[format]))


def spread(numbers: F32, exponent: int) -> F32:
    """Return numbers times powers of two around an exponent, another one for each row and column."""
    if exponent == 0:
        return numbers
    rows, columns = numbers.shape
    spread = np.arange(rows)[:, None] * 5 % 13 + np.arange(columns) * 3 % 7 - 9
    return np.ldexp(numbers, exponent + spread).astype(np.float32)


def rows_of(count: int, depth: int) -> F32:
    """Return rows with tiny, huge and infinite numbers and a NaN."""
    known = INPUTS.rows(depth)
    rows = np.concatenate([known[:3], known[6:], INPUTS.numbers(64, depth, at=5)])[:count].copy()
    rows[14:15], rows[15:16, depth // 2] = np.inf, np.nan
    return rows


def assert_equal(found: F32, expected: F32) -> None:
    same = (found.view(np.int32) == expected.view(np.int32)) | (np.isnan(found) & np.isnan(expected))
    assert same.all(), f"{(~same).sum()} of {same.size} differ, first at {np.argwhere(~same)[0]}"


def operand(on: CudaKernels, rows: DeviceRows) -> Operand:
    return Operand(rows.address, rows.shape[1], on.memory.uploaded(np.array([len(rows)], np.int32)), max(1, len(rows)))


def assert_product(x: F32, weight: Weight, up: Weight | None = None, *, biased: bool = True) -> None:
    """Compare a product with a bias, or a gated one without."""
    on, reference = kernels(), ReferenceKernels()
    bias = INPUTS.numbers(weight.shape[0], at=3) if biased and up is None else None
    made = DeviceRows.empty(on.memory, (len(x), weight.shape[0]))
    product = Product(
        on.weight(weight),
        None if up is None else on.weight(up),
        None if bias is None else on.vector(bias),
        None,
        operand(on, made),
    )
    given = DeviceRows.of(on.memory, x)
    on.launcher.run(float_products(on.ground, operand(on, given), [product], None if up is None else curve(SILU)))
    with np.errstate(all="ignore"):
        expected = reference.linear(x, (weight,), (bias,))[0] if up is None else reference.gated_linear(x, weight, up)
    assert_equal(made.host(), expected)


@pytest.mark.parametrize("format", FLOATS)
def test_products_have_the_bits_of_the_reference(format: str) -> None:
    for rows, depth in ((1, 200), (9, 33), (70, 7)):
        assert_product(rows_of(rows, depth), matrix(format, OUTPUTS, depth))
    gate, up = (matrix(format, OUTPUTS, 201, at) for at in (0, 3))
    assert_product(rows_of(17, 201), gate, up)


@pytest.mark.parametrize("format", FLOATS)
def test_large_tiles_have_the_bits_of_the_reference(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_launches, "_FILLED", 1)
    assert_product(rows_of(70, 200), matrix(format, 2 * OUTPUTS, 200))
    gate, up = (matrix(format, OUTPUTS, 33, at) for at in (0, 3))
    assert_product(rows_of(65, 33), gate, up)


@pytest.mark.parametrize("format", ["bfloat16", "fp8"])
def test_sums_near_the_smallest_normal_number_have_the_bits_of_the_reference(
    format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for filled in (float_launches._FILLED, 1):
        monkeypatch.setattr(float_launches, "_FILLED", filled)
        for inputs, weights in SMALL:
            x = spread(INPUTS.numbers(65, 130, at=9), inputs)
            assert_product(x, matrix(format, OUTPUTS, 130, 0, weights), biased=False)


@pytest.mark.cuda
@pytest.mark.parametrize("depth", [1, 64, 129, 200])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 16, 24, 32, 70])
@pytest.mark.parametrize("format", FLOATS)
def test_products_of_all_sizes_have_the_bits_of_the_reference(format: str, rows: int, depth: int) -> None:
    for outputs in (1, 32, OUTPUTS):
        assert_product(rows_of(rows, depth), matrix(format, outputs, depth))
        assert_product(rows_of(rows, depth), *(matrix(format, outputs, depth, at) for at in (0, 3)))


@pytest.mark.cuda
@pytest.mark.parametrize("format", FLOATS)
def test_products_are_the_same_in_every_order_of_warps(format: str) -> None:
    for seed in range(200):
        kernels().driver.seed(seed)
        assert_product(rows_of(9, 200), matrix(format, OUTPUTS, 200))


@pytest.mark.parametrize("format", FLOATS)
def test_heads_multiply_their_part_of_a_row(format: str) -> None:
    on, heads, x = kernels(), 3, INPUTS.numbers(5, 3 * 40, at=7)
    weight = matrix(format, heads * 64, 40)
    made = DeviceRows.empty(on.memory, (len(x), heads * 64))
    given = DeviceRows.of(on.memory, x)
    product = Product(on.weight(weight), None, None, None, operand(on, made))
    on.launcher.run(float_products(on.ground, operand(on, given), [product], None, Groups(heads, 0, 0, len(x))))
    assert_equal(made.host(), ReferenceKernels().head_linear(x, weight, heads))


def test_one_launch_multiplies_by_several_matrices() -> None:
    on, x = kernels(), INPUTS.numbers(5, 40, at=7)
    matrices = [matrix("bfloat16", outputs, 40, outputs) for outputs in (70, 32, 33, 1, 64)]
    made = [DeviceRows.empty(on.memory, (len(x), each.shape[0])) for each in matrices]
    products = [
        Product(on.weight(each), None, None, None, operand(on, rows)) for each, rows in zip(matrices, made, strict=True)
    ]
    launches = float_products(on.ground, operand(on, DeviceRows.of(on.memory, x)), products, None)
    on.launcher.run(launches)
    assert len(launches) == 2
    for each, rows in zip(matrices, made, strict=True):
        assert_equal(rows.host(), each.matmul(x))
