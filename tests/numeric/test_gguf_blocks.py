"""Every GGUF type has exactly the numbers that the `gguf` library reads, on random and on adversarial blocks."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from ferrum.quant.gguf_blocks import BLOCKS, TYPE_NAMES
from ferrum.quant.gguf_integers import HELD, integers_of

QUANTISED = [name for name in BLOCKS if BLOCKS[name].numbers > 1]


def blocks_of(kind: str, seed: int) -> np.ndarray:
    """Return 400 random blocks; some are all zeros, all ones, or have a subnormal or negative zero scale."""
    blocks = np.random.default_rng(seed).integers(0, 256, (400, BLOCKS[kind].nbytes), np.uint8)
    blocks[0], blocks[1] = 0, 255
    for at in (0, 2, 80, 82, 108, 208):
        if at + 2 <= BLOCKS[kind].nbytes:
            blocks[10 + at, at : at + 2] = (1, 0)  # the least subnormal of f16
            blocks[11 + at, at : at + 2] = (0, 128)  # minus zero
    return blocks


@pytest.mark.parametrize("kind", QUANTISED)
def test_numbers_equal_the_libraries(kind: str) -> None:
    for seed in range(3):
        blocks = blocks_of(kind, seed)
        with np.errstate(all="ignore"):
            ours, theirs = BLOCKS[kind].dequantize(blocks), dequantize(blocks, GGMLQuantizationType[kind])
        assert ours.shape == (len(blocks), BLOCKS[kind].numbers) and ours.dtype == np.float32
        np.testing.assert_array_equal(ours, theirs.reshape(ours.shape))
        numbers = ~np.isnan(ours)
        np.testing.assert_array_equal(ours[numbers].view(np.int32), theirs.reshape(ours.shape)[numbers].view(np.int32))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_floats_equal_the_libraries(kind: str) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (512, BLOCKS[kind].nbytes), np.uint8)
    ours, theirs = BLOCKS[kind].dequantize(raw), dequantize(raw, GGMLQuantizationType[kind]).reshape(512, 1)
    np.testing.assert_array_equal(ours, theirs.astype(np.float32))


@pytest.mark.parametrize("kind", HELD)
def test_integer_formats_hold_the_numbers(kind: str) -> None:
    blocks = blocks_of(kind, 7).reshape(40, 10, -1)
    blocks[..., 1] &= 0x7B  # finite scales
    weight = integers_of(kind, blocks)
    theirs = dequantize(blocks.reshape(400, -1), GGMLQuantizationType[kind]).reshape(40, 320)
    np.testing.assert_array_equal(weight.dequantize(), theirs)
    assert weight.format == HELD[kind] and weight.shape == (40, 320)


def test_every_known_type_code_is_the_libraries() -> None:
    assert all(GGMLQuantizationType(code).name == name for code, name in TYPE_NAMES.items() if code < 40)
