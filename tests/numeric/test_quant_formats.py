"""Properties of all quantised formats: the rounding error, the look-up, and a product in exact arithmetic."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from ferrum.core.errors import ConfigError
from ferrum.kernels.reference.reference_math import fused
from ferrum.quant.activations import BLOCK, quantize_rows
from ferrum.quant.formats import QUANTIZERS
from ferrum.quant.scale_groups import GROUPS

FORMATS = [(name, group) for name in QUANTIZERS for group in GROUPS]
SHAPES = ((1, 1), (5, 31), (33, 128), (40, 129), (7, 300))


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def bits_of(format: str) -> int:
    return int(re.fullmatch(r"int(\d)", format)[1])


def padded(matrix: np.ndarray, group: int) -> np.ndarray:
    """Reshape [n, K] -> [n, G, group], padded with zeros."""
    rows, inputs = matrix.shape
    return np.pad(matrix, ((0, 0), (0, -inputs % group))).reshape(rows, -1, group)


@pytest.mark.parametrize(("name", "group"), FORMATS)
def test_error_is_within_the_rounding_of_the_format(name, group):
    """A step is the largest magnitude of the group divided by 128 or 8.

    Rounding to the nearest has an error of 1 / sqrt(12) = 0.289 of a step; clipping at the end of the range up to two.
    """
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        values = normal(rng, *shape) * rng.choice([0.02, 1, 50], (shape[0], 1)).astype(np.float32)
        weight = QUANTIZERS[name](values, group)
        error = padded(np.abs(weight.dequantize() - values), group)
        step = padded(np.abs(values), group).max(axis=-1, keepdims=True) / 2 ** (bits_of(weight.format) - 1)
        assert (error <= 2 * step).all()
        assert np.sqrt(np.mean((error / step) ** 2)) < 0.31


@pytest.mark.parametrize(("name", "group"), FORMATS)
def test_shape_bytes_and_rows(name, group):
    rng = np.random.default_rng(2)
    for outputs, inputs in SHAPES:
        weight = QUANTIZERS[name](normal(rng, outputs, inputs), group)
        groups = -(-inputs // group)
        zero_points = outputs * groups if name == "int4-zero-points" else 0
        codes = outputs * groups * group * bits_of(weight.format) // 8
        assert weight.shape == (outputs, inputs)
        assert weight.nbytes == codes + 2 * outputs * groups + zero_points
        ids = rng.integers(0, outputs, 9).astype(np.int32)
        np.testing.assert_array_equal(weight.rows(ids), weight.dequantize()[ids])


@pytest.mark.parametrize(("name", "group"), FORMATS)
def test_product_equals_the_documented_arithmetic(name, group):
    """Computes `quant/activations.py` one scalar at a time with Python integers."""
    rng = np.random.default_rng(3)
    x, f32 = normal(rng, 2, 2 * BLOCK + group + 3), np.float32
    weight = QUANTIZERS[name](normal(rng, 3, x.shape[1]), group)
    codes, ours = weight.signed_codes(slice(None)), weight.matmul(x)
    for m, row in enumerate(padded(x, BLOCK)):
        for n in range(3):
            y = f32(0)
            for b, block in enumerate(row):
                largest = f32(max(abs(v) for v in block))
                scale, factor = largest / f32(127), f32(127) / largest
                part, first = f32(0), b * (BLOCK // group)
                groups = block.reshape(-1, group), codes[n, first:], weight.scales[n, first:]
                for values, theirs, of_weights in zip(*groups, strict=False):  # the last block may be incomplete
                    total = sum(round(float(f32(v * factor))) * int(c) for v, c in zip(values, theirs, strict=True))
                    part = fused(f32(total), f32(of_weights), part)
                y = fused(part, scale, y)
            assert y == ours[m, n]


@pytest.mark.parametrize(("name", "group"), FORMATS)
def test_product_differs_from_the_dequantised_one_by_activation_rounding(name, group):
    """Bound: half a unit of each activation's scale times the weights' magnitudes, and K units of f32 (Higham 4.2)."""
    rng = np.random.default_rng(4)
    for outputs, inputs in SHAPES:
        weight = QUANTIZERS[name](normal(rng, outputs, inputs), group)
        x = normal(rng, 6, inputs)
        dense = weight.dequantize().astype(np.float64)
        half = np.repeat(quantize_rows(x, group).scales, BLOCK, axis=1)[:, :inputs] / 2
        bound = (half * 1.001 + np.abs(x) * inputs * 2.0**-23) @ np.abs(dense).T
        assert (np.abs(weight.matmul(x) - x.astype(np.float64) @ dense.T) <= bound).all()


@pytest.mark.parametrize("name", QUANTIZERS)
def test_row_bits_do_not_depend_on_batch_or_threads(name):
    rng = np.random.default_rng(5)
    weight, x = QUANTIZERS[name](normal(rng, 300, 203), 32), normal(rng, 130, 203)
    with threadpool_limits(1):
        whole = weight.matmul(x)
    with threadpool_limits(2):
        for rows in (1, 2, 3, 17, 64, 129):
            begin = int(rng.integers(0, 130 - rows))
            np.testing.assert_array_equal(weight.matmul(x[begin : begin + rows]), whole[begin : begin + rows])
    assert weight.matmul(x[:0]).shape == (0, 300)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_nan_and_infinity_reach_all_outputs_of_only_their_row(name):
    rng = np.random.default_rng(6)
    weight, x = QUANTIZERS[name](normal(rng, 40, 100), 32), normal(rng, 8, 100)
    clean = weight.matmul(x)
    x[2, 7], x[5, 99], x[6, 0] = np.nan, np.inf, -np.inf
    soiled = weight.matmul(x)
    assert np.isnan(soiled[[2, 5, 6]]).all()
    kept = [0, 1, 3, 4, 7]
    np.testing.assert_array_equal(soiled[kept], clean[kept])


@pytest.mark.parametrize("name", QUANTIZERS)
def test_activations_of_any_size_keep_precision_or_count_as_zeros(name):
    rng = np.random.default_rng(7)
    weight, x = QUANTIZERS[name](normal(rng, 20, 64), 32), normal(rng, 3, 64)
    plain = weight.matmul(x)
    for power in (-60, 100):
        np.testing.assert_array_equal(weight.matmul(x * np.float32(2.0**power)), plain * np.float32(2.0**power))
    np.testing.assert_array_equal(weight.matmul(x * np.float32(2.0**-70)), np.zeros((3, 20)))


@pytest.mark.parametrize("name", QUANTIZERS)
def test_zeros_and_numbers_below_the_smallest_scale_become_zeros(name):
    for size in (0, 1e-12):
        weight = QUANTIZERS[name](np.full((3, 70), size, np.float32), 32)
        assert not weight.dequantize().any()
        assert not weight.matmul(np.ones((2, 70), np.float32)).any()


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_float16_and_bfloat16_quantise_like_float32(name, dtype):
    values = normal(np.random.default_rng(8), 50, 70).astype(dtype)
    ours, wide = QUANTIZERS[name](values, 32), QUANTIZERS[name](values.astype(np.float32), 32)
    np.testing.assert_array_equal(ours.dequantize(), wide.dequantize())


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize(("value", "reason"), [(np.nan, "not finite"), (np.inf, "not finite"), (1e30, "too large")])
def test_weights_without_a_float16_scale_are_refused(name, value, reason):
    values = np.zeros((4, 40), np.float32)
    values[3, 39] = value
    with pytest.raises(ConfigError, match=reason) as caught:
        QUANTIZERS[name](values, 32)
    assert caught.value.param == "quantize"
