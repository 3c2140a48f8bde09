"""Panels have the documented layout, and weights over them equal the original ones."""

from __future__ import annotations

import numpy as np
import pytest

from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import over_panels
from ferrum.quant.panels import LANES, panel_shape
from native_weights import BLOCKS, weight_of

SHAPES = ((1, 1), (32, 32), (33, 40), (70, 289))


def parts_of(weight) -> dict[str, tuple[int, np.dtype]]:
    """Return the documented parts before the codes: their numbers per output of a block, and dtypes."""
    kind = weight.kind
    scale, sub = (1, kind.scale), (kind.groups, kind.sub)
    whole = {"d": scale, "m": scale, "sub": sub, "sub_m": sub}
    return {name: part for name, part in whole.items() if getattr(weight.stored(slice(None)), name) is not None}


def stored_code(kind, group: np.ndarray, lane: int, k: int) -> int:
    """Return the code of an input from the bytes of a group's rows [rows, 32, 4], as `quant/panels.py` says."""
    word, byte = divmod(k, 4)
    if kind.bits == 8:
        return int(group[word, lane, (0, 2, 1, 3)[byte] if kind.float8 else byte])
    low = int(group[word // 2, lane, byte]) >> 4 * (word % 2) & 15
    width = kind.bits - 4
    if width == 0:
        return low
    upper = int(group[kind.group // 8, lane, byte]) >> width * word & (1 << width) - 1
    return low | upper << 4


@pytest.mark.parametrize("format", [name for name in BLOCKS if BLOCK_FORMATS[name].low is None])
def test_codes_and_scales_have_the_documented_positions(format):
    """Reads the documented layout one element at a time."""
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        weight = weight_of(rng, *shape, format)
        kind, held, panels = weight.kind, weight.stored(slice(None)), weight.panels
        assert panels.shape == panel_shape(kind, shape) and panels.nbytes == weight.nbytes
        for n, b in np.ndindex(shape[0], kind.blocks(shape[1])):
            block, lane, at = panels[n // LANES, b], n % LANES, 0
            for name, (count, dtype) in parts_of(weight).items():
                numbers = block[at : at + LANES * count * dtype.itemsize].view(dtype).reshape(count, LANES)[:, lane]
                assert numbers.tobytes() == getattr(held, name)[n, b * count : (b + 1) * count].tobytes()
                at += numbers.nbytes * LANES
            rows = block[at:].reshape(kind.groups, -1, LANES, 4)
            for g, k in np.ndindex(kind.groups, kind.group):
                assert stored_code(kind, rows[g], lane, k) == held.codes[n, b * kind.groups + g, k]


@pytest.mark.parametrize("format", BLOCKS)
def test_lanes_without_an_output_are_zeros(format):
    """Their scales are 0, whatever integer their codes stand for."""
    weight = weight_of(np.random.default_rng(2), 33, 40, format)
    whole = over_panels(weight.panels, weight.kind, (64, 40))
    assert not whole.dequantize()[33:].any()
    assert not whole.matmul(np.full((1, 40), 1e30, np.float32))[:, 33:].any()


@pytest.mark.parametrize("format", BLOCKS)
def test_weight_over_panels_equals_the_original(format):
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        weight = weight_of(rng, *shape, format)
        panels = weight.panels
        panels.flags.writeable = False
        over = over_panels(panels.reshape(-1), weight.kind, shape)
        assert (over.shape, over.format, over.nbytes) == (weight.shape, weight.format, weight.nbytes)
        np.testing.assert_array_equal(over.dequantize(), weight.dequantize())
        ids = rng.integers(0, shape[0], 5).astype(np.int32)
        np.testing.assert_array_equal(over.rows(ids), weight.rows(ids))
        x = rng.standard_normal((3, shape[1])).astype(np.float32)
        np.testing.assert_array_equal(over.matmul(x), weight.matmul(x))
        assert np.shares_memory(over.panels, panels)
