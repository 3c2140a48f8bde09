"""Products of every block format: the documented arithmetic, the error of rounded inputs, and what stays in a row."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from ferrum.kernels.reference.fused_sums import fused
from ferrum.quant.block_weight import ROUNDED, round_rows
from native_twin import normal
from native_weights import BLOCKS, INTEGERS, weight_of

SHAPES = ((1, 1), (5, 31), (33, 128), (40, 129), (7, 300))


def padded(matrix: np.ndarray, size: int) -> np.ndarray:
    """Reshape [n, K] -> [n, parts, size], padded with zeros."""
    rows, inputs = matrix.shape
    return np.pad(matrix, ((0, 0), (0, -inputs % size))).reshape(rows, -1, size)


@pytest.mark.parametrize("format", INTEGERS)
def test_product_equals_the_documented_arithmetic(format):
    """Computes `quant/block_weight.py` one scalar at a time with Python integers."""
    rng = np.random.default_rng(3)
    x, f32 = normal(rng, 2, 2 * 256 + 35), np.float32
    weight = weight_of(rng, 3, x.shape[1], format)
    decoded, group = weight.decoded(slice(None)), weight.kind.group
    integers, scales, minima = decoded.integers.tolist(), decoded.scales, decoded.minima
    ours = weight.matmul(x)
    for m, row in enumerate(padded(x, ROUNDED)):
        codes, factors = [], []
        for part in row:
            largest = f32(max(abs(number) for number in part))
            codes += [round(float(f32(number * (f32(127) / largest)))) for number in part]
            factors += [largest / f32(127)] * (ROUNDED // group)
        for n in range(3):
            y = f32(0)
            for g, factor in enumerate(factors):
                part = codes[g * group : (g + 1) * group]
                total = sum(code * integer for code, integer in zip(part, integers[n][g], strict=True))
                y = fused(f32(total), scales[n, g] * factor, y)
                if minima is not None:
                    y = fused(minima[n, g], f32(sum(part)) * factor, y)
            if decoded.outputs is not None:
                y = y * decoded.outputs[n, 0] / decoded.outputs[n, 1]
            assert y == ours[m, n]


def test_product_of_fp8_equals_the_documented_arithmetic():
    """Computes docs/numerics.md one scalar at a time; float64 holds these sums of products exactly."""
    rng, f32 = np.random.default_rng(9), np.float32
    x, weight = normal(rng, 2, 300), weight_of(rng, 3, 300, "fp8")
    rows, decoded = padded(x.astype(ml_dtypes.bfloat16).astype(np.float64), 128), weight.decoded(slice(None))
    for m, n in np.ndindex(2, 3):
        y = f32(0)
        for row, numbers, scale in zip(rows[m], decoded.integers[n].tolist(), decoded.scales[n], strict=True):
            total = f32(0)
            for k in range(0, 128, 2):
                total = f32(float(total) + row[k + 1] * numbers[k + 1])
                total = f32(float(total) + row[k] * numbers[k])
            y = fused(total, scale, y)
        assert y == weight.matmul(x)[m, n]


@pytest.mark.parametrize("format", INTEGERS)
def test_product_differs_from_the_dequantised_one_by_the_rounding_of_inputs(format):
    """Bound: half a unit of each input's scale times the weights' magnitudes, and K + 4 units of f32 (Higham 4.2)."""
    rng = np.random.default_rng(4)
    for outputs, inputs in SHAPES:
        weight, x = weight_of(rng, outputs, inputs, format), normal(rng, 6, inputs)
        dense, decoded = weight.dequantize().astype(np.float64), weight.decoded(slice(None))
        terms = np.abs(decoded.integers * decoded.scales[..., None].astype(np.float64))
        if decoded.minima is not None:
            terms += np.abs(decoded.minima)[..., None]
        if decoded.outputs is not None:
            terms *= np.abs(decoded.outputs[:, :1] / decoded.outputs[:, 1:])[..., None]
        half = np.repeat(round_rows(x, ROUNDED, -(-inputs // ROUNDED)).scales, ROUNDED, axis=1)[:, :inputs] / 2
        bound = half * 1.001 @ np.abs(dense).T
        bound += (np.abs(x) + half) * (inputs + 4) * 2.0**-23 @ terms.reshape(outputs, -1)[:, :inputs].T
        assert (np.abs(weight.matmul(x) - x.astype(np.float64) @ dense.T) <= bound).all()


@pytest.mark.parametrize("format", BLOCKS)
def test_row_bits_do_not_depend_on_batch_or_threads(format):
    rng = np.random.default_rng(5)
    weight, x = weight_of(rng, 300, 203, format), normal(rng, 130, 203)
    with threadpool_limits(1):
        whole = weight.matmul(x)
    with threadpool_limits(2):
        for rows in (1, 2, 3, 17, 64, 129):
            begin = int(rng.integers(0, 130 - rows))
            np.testing.assert_array_equal(weight.matmul(x[begin : begin + rows]), whole[begin : begin + rows])
    assert weight.matmul(x[:0]).shape == (0, 300)


@pytest.mark.parametrize("format", INTEGERS)
def test_nan_and_infinity_reach_all_outputs_of_only_their_row(format):
    rng = np.random.default_rng(6)
    weight, x = weight_of(rng, 40, 100, format), normal(rng, 8, 100)
    clean = weight.matmul(x)
    x[2, 7], x[5, 99], x[6, 0] = np.nan, np.inf, -np.inf
    soiled = weight.matmul(x)
    assert np.isnan(soiled[[2, 5, 6]]).all()
    kept = [0, 1, 3, 4, 7]
    np.testing.assert_array_equal(soiled[kept], clean[kept])


@pytest.mark.parametrize("format", INTEGERS)
def test_inputs_of_any_size_keep_precision_or_count_as_zeros(format):
    rng = np.random.default_rng(7)
    weight, x = weight_of(rng, 20, 64, format), normal(rng, 3, 64)
    plain = weight.matmul(x)
    for power in (-60, 90):
        np.testing.assert_array_equal(weight.matmul(x * np.float32(2.0**power)), plain * np.float32(2.0**power))
    np.testing.assert_array_equal(weight.matmul(x * np.float32(2.0**-70)), np.zeros((3, 20)))
