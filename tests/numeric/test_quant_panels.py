"""Panels have the documented layout, and weights over them equal the original ones."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ferrum.core.errors import ConfigError
from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.quant.backend_quantizer import quantizer_of
from ferrum.quant.formats import QUANTIZERS, layout_of
from ferrum.quant.panel_weight import over_panels
from ferrum.quant.scale_groups import GROUPS
from native_twin import TIERS

FORMATS = [(name, group) for name in QUANTIZERS for group in GROUPS]
SHAPES = ((1, 1), (32, 32), (33, 40), (70, 129))


def values_of(shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def hard_values(shape: tuple[int, int]) -> list[np.ndarray]:
    """Return heavy tails, coarse numbers (many halves and equal magnitudes), subnormal scales, zeros."""
    drawn = np.random.default_rng(1).standard_t(3, shape)
    sizes = [drawn * size for size in (0.02, 1e-7, 3e-9, 0)]
    return [each.astype(np.float32) for each in (*sizes, np.rint(2 * drawn), np.where(drawn > 1, drawn, 0))]


@pytest.mark.parametrize(("name", "group"), FORMATS)
def test_codes_and_scales_have_the_documented_positions(name, group):
    """Computes the documented layout one element at a time."""
    for shape in SHAPES:
        weight = QUANTIZERS[name](values_of(shape), group)
        panels, codes = weight.panels, weight.signed_codes(slice(None)).astype(int)
        assert panels.shape == weight.layout.shape(shape) and panels.shape[-1] % 64 == 0
        code_bytes = 32 * group // (1 if name == "int8" else 2)
        for n, g in np.ndindex(codes.shape[:2]):
            at, lane = panels[n // 32, g], n % 32
            numbers = at[code_bytes:].view(np.uint16).reshape(-1, 32)
            assert numbers[0].view(np.float16)[lane] == weight.scales[n, g]
            zero = 128 if name == "int8" else 8 if weight.zero_points is None else int(numbers[1, lane])
            for k in range(group):
                if name == "int8":
                    stored = at[k // 4 * 128 + lane * 4 + k % 4]
                else:
                    byte = at[k // 8 * 128 + lane * 4 + k % 4]
                    stored = byte >> 4 if k % 8 >= 4 else byte & 15
                assert int(stored) - zero == codes[n, g, k]


@pytest.mark.parametrize(("name", "group"), FORMATS)
def test_weight_over_panels_equals_the_original(name, group):
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        weight = QUANTIZERS[name](values_of(shape), group)
        panels = weight.panels
        panels.flags.writeable = False
        over = over_panels(panels, layout_of(name, group), shape)
        assert (over.shape, over.format, over.group) == (weight.shape, weight.format, weight.group)
        np.testing.assert_array_equal(over.dequantize(), weight.dequantize())
        ids = rng.integers(0, shape[0], 5).astype(np.int32)
        np.testing.assert_array_equal(over.rows(ids), weight.rows(ids))
        x = rng.standard_normal((3, shape[1])).astype(np.float32)
        np.testing.assert_array_equal(over.matmul(x), weight.matmul(x))
        assert np.shares_memory(over.panels, panels)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("tier", TIERS)
def test_native_quantiser_gives_the_panels_of_numpy(tier, dtype):
    quantizer = quantizer_of(NativeKernels(tier, 2))
    for shape in SHAPES:
        for values in (each.astype(dtype) for each in hard_values(shape)):
            for name, group in FORMATS:
                ours, theirs = quantizer(name, values, group), QUANTIZERS[name](values, group)
                np.testing.assert_array_equal(ours.panels, theirs.panels)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(("value", "reason"), [(np.nan, "not finite"), (np.inf, "not finite"), (1e30, "too large")])
def test_native_quantiser_refuses_weights_without_a_scale(tier, value, reason):
    quantizer = quantizer_of(NativeKernels(tier, 2))
    for place in ((0, 0), (3, 39), (69, 17)):
        values = values_of((70, 40))
        values[place] = value
        for name, group in FORMATS:
            with pytest.raises(ConfigError, match=reason) as caught:
                quantizer(name, values, group)
            assert caught.value.param == "quantize"
