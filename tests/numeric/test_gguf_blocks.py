"""Every GGUF type has exactly the numbers that the `gguf` library reads, on random and on adversarial blocks."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as theirs_of

from ferrum.kernels.cpu.native_kernels import NativeKernels
from ferrum.quant.block_weight import over_panels
from ferrum.quant.gguf_blocks import GGUF_TYPES, TYPE_NAMES, dequantize, weight_of
from native_twin import require_native

HELD = [name for name, kind in GGUF_TYPES.items() if kind.format is not None]


def blocks_of(kind: str, seed: int) -> np.ndarray:
    """Return 400 random blocks; some are all zeros, all ones, or have a subnormal or negative zero scale."""
    blocks = np.random.default_rng(seed).integers(0, 256, (400, GGUF_TYPES[kind].nbytes), np.uint8)
    blocks[0], blocks[1] = 0, 255
    for at in (0, 2, 80, 82, 108, 208):
        if at + 2 <= GGUF_TYPES[kind].nbytes:
            blocks[10 + at, at : at + 2] = (1, 0)  # the least subnormal of f16
            blocks[11 + at, at : at + 2] = (0, 128)  # minus zero
    return blocks


@pytest.mark.parametrize("kind", GGUF_TYPES)
def test_numbers_equal_the_libraries(kind: str) -> None:
    for seed in range(3):
        blocks = blocks_of(kind, seed)
        with np.errstate(all="ignore"):
            ours = dequantize(kind, blocks.reshape(40, 10, -1))
            theirs = theirs_of(blocks, GGMLQuantizationType[kind]).astype(np.float32).reshape(ours.shape)
        assert ours.shape == (40, 10 * GGUF_TYPES[kind].numbers) and ours.dtype == np.float32
        np.testing.assert_array_equal(ours, theirs)
        numbers = ~np.isnan(ours)
        np.testing.assert_array_equal(ours[numbers].view(np.int32), theirs[numbers].view(np.int32))


@pytest.mark.parametrize("kind", HELD)
def test_panels_hold_the_numbers(kind: str) -> None:
    weight = weight_of(kind, blocks_of(kind, 7).reshape(40, 10, -1))
    assert weight.format == GGUF_TYPES[kind].format
    panels = over_panels(weight.panels.reshape(-1), weight.kind, weight.shape)
    assert panels.nbytes == weight.nbytes and panels.panels.shape[0] == 2
    np.testing.assert_array_equal(panels.dequantize(), weight.dequantize())
    ids = np.array([39, 0, 7], np.int32)
    np.testing.assert_array_equal(panels.rows(ids), weight.dequantize()[ids])


@pytest.mark.parametrize("kind", HELD)
def test_native_kernels_hold_the_numbers(kind: str) -> None:
    require_native()
    weight = weight_of(kind, blocks_of(kind, 8).reshape(40, 10, -1))
    packed = NativeKernels(threads=1).weight(weight)
    assert packed.format == weight.format
    np.testing.assert_array_equal(packed.dequantize(), weight.dequantize())


def test_every_known_type_code_is_the_libraries() -> None:
    assert all(GGMLQuantizationType(code).name == name for code, name in TYPE_NAMES.items() if code < 40)
