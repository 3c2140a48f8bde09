"""Panels: every byte where the layout says, and a weight over them equal to the one that they were made from."""

from __future__ import annotations

import numpy as np
import pytest

from ferrum.quant.formats import QUANTIZERS
from ferrum.quant.panels import from_panels, panel_shape, to_panels

SHAPES = ((1, 1), (32, 32), (33, 40), (70, 129))


def weight_of(format: str, shape: tuple[int, int], seed: int = 0):
    return QUANTIZERS[format](np.random.default_rng(seed).standard_normal(shape).astype(np.float32), 32)


@pytest.mark.parametrize("format", ["int8", "int4"])
def test_every_code_and_scale_lies_where_the_layout_says(format):
    """The text of the module (and of the native library's header), an element at a time."""
    for shape in SHAPES:
        weight = weight_of(format, shape)
        panels, codes = to_panels(weight), weight.signed_codes(slice(None)).astype(int)
        assert panels.shape == panel_shape(format, shape) and panels.shape[-1] % 64 == 0
        for n, g, k in np.ndindex(shape[0], codes.shape[1], 32):
            group = panels[n // 32, g]
            if format == "int8":
                assert group[k // 4 * 128 + n % 32 * 4 + k % 4] == codes[n, g, k] + 128
            else:
                byte = group[k // 8 * 128 + n % 32 * 4 + k % 4]
                assert (byte >> 4 if k % 8 >= 4 else byte & 15) == codes[n, g, k] + 8
            assert group[-64:].view(np.float16)[n % 32] == weight.scales[n, g]


@pytest.mark.parametrize("format", ["int8", "int4"])
def test_a_weight_over_panels_is_the_one_that_they_were_made_from(format):
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        weight = weight_of(format, shape)
        panels = to_panels(weight)
        panels.flags.writeable = False
        over = from_panels(panels, format, shape)
        assert (over.shape, over.format, over.group) == (weight.shape, weight.format, weight.group)
        np.testing.assert_array_equal(over.dequantize(), weight.dequantize())
        ids = rng.integers(0, shape[0], 5).astype(np.int32)
        np.testing.assert_array_equal(over.rows(ids), weight.rows(ids))
        x = rng.standard_normal((3, shape[1])).astype(np.float32)
        np.testing.assert_array_equal(over.matmul(x), weight.matmul(x))
        name = "codes" if format == "int8" else "packed"
        np.testing.assert_array_equal(getattr(over, name), getattr(weight, name))
        np.testing.assert_array_equal(to_panels(over), panels)
