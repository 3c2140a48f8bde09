"""Quantisers of every format: the error, what they refuse, and the same panels from numpy and from every backend."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from ferrum.core.errors import ConfigError
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.quant.backend_quantizer import quantize, quantizer_of
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_quantizers import QUANTIZERS
from native_twin import TIERS, normal

SHAPES = ((1, 1), (32, 32), (33, 40), (70, 289))
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
IN_PYTHON = [name for name in QUANTIZERS if not name.endswith("_k")]
"""Formats that the `gguf` package quantises to."""


def hard_values(shape: tuple[int, int]) -> list[np.ndarray]:
    """Return heavy tails, coarse numbers (many halves and equal magnitudes), subnormal scales, zeros."""
    drawn = np.random.default_rng(1).standard_t(3, shape)
    sizes = [drawn * size for size in (0.02, 1e-7, 3e-9, 0)]
    return [each.astype(np.float32) for each in (*sizes, np.rint(2 * drawn), np.where(drawn > 1, drawn, 0))]


@pytest.mark.parametrize("name", QUANTIZERS)
def test_error_is_within_the_rounding_of_the_format(name):
    """A step of the largest magnitude divided by half the codes is rounded to within 1 / sqrt(12) of it, or 0.289."""
    rng = np.random.default_rng(1)
    for shape in ((5, 31), (33, 256), (40, 300)):
        values = normal(rng, *shape) * rng.choice([0.02, 1, 50], (shape[0], 1)).astype(np.float32)
        step = np.abs(values).max(axis=1, keepdims=True) / 2 ** (BLOCK_FORMATS[name].bits - 1)
        error = np.abs(quantize(name, values).dequantize() - values)
        assert (error <= 2 * step).all()
        assert np.sqrt(np.mean((error / step) ** 2)) < 0.31


@pytest.mark.parametrize("name", IN_PYTHON)
def test_squared_error_is_at_most_that_of_the_library(name):
    kind = GGMLQuantizationType[name.upper()]
    for values in hard_values((64, 96)):
        theirs = quants.dequantize(quants.quantize(values, kind), kind)
        ours, exact = quantize(name, values).dequantize(), values.astype(np.float64)
        assert ((ours - exact) ** 2).sum() <= ((theirs - exact) ** 2).sum() * (1 + 1e-5)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_zeros_and_numbers_below_the_smallest_scale_become_zeros(name):
    for size in (0, 1e-12):
        weight = quantize(name, np.full((3, 70), size, np.float32))
        assert not weight.dequantize().any()
        assert not weight.matmul(np.ones((2, 70), np.float32)).any()


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_float16_and_bfloat16_quantise_like_float32(name, dtype):
    values = normal(np.random.default_rng(8), 50, 70).astype(dtype)
    ours, wide = quantize(name, values), quantize(name, values.astype(np.float32))
    np.testing.assert_array_equal(ours.panels, wide.panels)


@pytest.mark.parametrize("tier", ["numpy", *TIERS])
@pytest.mark.parametrize(("value", "reason"), [(np.nan, "not finite"), (np.inf, "not finite"), (1e30, "too large")])
def test_weights_without_a_scale_are_refused(tier, value, reason):
    quantizer = quantize if tier == "numpy" else quantizer_of(NativeKernels(tier, 2))
    for place in ((0, 0), (3, 39), (69, 17)):
        values = normal(np.random.default_rng(0), 70, 40)
        values[place] = value
        for name in QUANTIZERS:
            with pytest.raises(ConfigError, match=reason) as caught:
                quantizer(name, values)
            assert caught.value.param == "quantize"
