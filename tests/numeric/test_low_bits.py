"""Blocks of less than four bits have the numbers of the `gguf` package, and panels have the bytes of the file."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as dequantized

from ferrum.kernels.codebooks import CODEBOOKS, packed_points, points_of
from ferrum.quant.block_format import BLOCK_FORMATS
from ferrum.quant.block_weight import FileWeight, file_weight, over_panels
from ferrum.quant.gguf_blocks import dequantize, stacked
from ferrum.quant.low_bits import LOW_BITS


def random_weight(name: str, outputs: int, blocks: int, seed: int = 0) -> FileWeight:
    nbytes = LOW_BITS[name].nbytes
    return file_weight(
        BLOCK_FORMATS[name], np.random.default_rng(seed).integers(0, 256, (outputs, blocks, nbytes), np.uint8)
    )


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of the package: scales may be infinite
@pytest.mark.parametrize("name", LOW_BITS)
def test_numbers_are_those_of_the_gguf_package(name: str) -> None:
    weight = random_weight(name, 300, 2)
    expected = dequantized(weight.blocks.reshape(300, -1), GGMLQuantizationType[name.upper()])
    np.testing.assert_array_equal(dequantize(name.upper(), weight.blocks), expected)


@pytest.mark.parametrize("name", LOW_BITS)
def test_panels_take_the_bytes_of_the_file_and_give_its_numbers(name: str) -> None:
    weight = random_weight(name, 70, 3)
    packed = over_panels(weight.panels, weight.kind, weight.shape)
    assert packed.nbytes * 70 == weight.blocks.nbytes * 96  # three panels of 32 outputs
    np.testing.assert_array_equal(packed.dequantize(), weight.dequantize())
    rows = np.array([69, 0, 33, 32], np.int32)
    np.testing.assert_array_equal(packed.rows(rows), weight.dequantize()[rows])
    np.testing.assert_array_equal(packed.part(32, 64).dequantize(), weight.dequantize()[32:64])


@pytest.mark.parametrize("name", LOW_BITS)
def test_matrices_are_joined_and_folded_by_blocks(name: str) -> None:
    weights = [random_weight(name, 33, 4, seed) for seed in (1, 2)]
    whole = np.concatenate([each.dequantize() for each in weights])
    packed = over_panels(weights[1].panels, weights[1].kind, weights[1].shape)
    np.testing.assert_array_equal(stacked([weights[0], packed]).dequantize(), whole)
    half = 2 * weights[0].kind.block
    np.testing.assert_array_equal(packed.folded(half).dequantize(), whole[33:].reshape(66, half))


def test_packed_points_are_those_of_their_codebooks() -> None:
    for name, book in CODEBOOKS.items():
        points, packed = points_of(name), packed_points(name)
        assert len(points) == len(packed) and len(np.unique(points, axis=0)) == len(points)
        if book.size == 8:
            indices = packed[:, None] >> np.array([8 * (i % 4) + 4 * (i // 4) for i in range(8)], np.uint32) & 15
            np.testing.assert_array_equal(np.array(book.levels, np.int8)[indices], points)
