"""Integer formats can hold Q8_0 and Q4_0 of GGUF without loss, and quantise to the numbers of the `gguf` package."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from ferrum.quant.int4 import CLIPPING, Int4Weight, pack_nibbles, quantize_int4
from ferrum.quant.int8 import Int8Weight, quantize_int8
from ferrum.quant.weight import GroupedWeight

Q8_0, Q4_0 = GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0


def samples() -> list[np.ndarray]:
    """Return normal, heavy-tailed, coarse (many halves and equal magnitudes), zero, and tiny numbers."""
    rng = np.random.default_rng(11)
    coarse = rng.integers(-8, 9, (200, 96))
    return [
        each.astype(np.float32)
        for each in (
            rng.standard_normal((200, 96)) * 0.02,
            rng.standard_t(2, (200, 96)),
            coarse,
            np.where(coarse > 4, coarse, 0) * (rng.random((200, 1)) < 0.5),
            rng.standard_normal((200, 96)) * 2.0**-16,
        )
    ]


def plain(values: np.ndarray) -> GroupedWeight:
    return quantize_int4(values, clipping=())


def same(ours: GroupedWeight, theirs: GroupedWeight) -> None:
    np.testing.assert_array_equal(ours.scales, theirs.scales)
    np.testing.assert_array_equal(ours.signed_codes(slice(None)), theirs.signed_codes(slice(None)))


def from_q8_0(blocks: np.ndarray) -> Int8Weight:
    """Read a matrix of a GGUF file without loss.

    Args:
        blocks: uint8 [N, 34 G]: per group a float16 scale and 32 int8 codes.
    """
    parts = np.ascontiguousarray(blocks).reshape(len(blocks), -1, 34)
    scales = np.ascontiguousarray(parts[..., :2]).view(np.float16)[..., 0]
    codes = np.ascontiguousarray(parts[..., 2:]).view(np.int8).reshape(len(blocks), -1)
    return Int8Weight(scales=scales, inputs=codes.shape[1], group=32, codes=codes)


def from_q4_0(blocks: np.ndarray) -> Int4Weight:
    """Read a matrix of a GGUF file without loss.

    Args:
        blocks: uint8 [N, 18 G]: per group a float16 scale and 16 bytes; byte j has input j in its low four bits and
            input j + 16 in its high four bits.
    """
    parts = np.ascontiguousarray(blocks).reshape(len(blocks), -1, 18)
    scales = np.ascontiguousarray(parts[..., :2]).view(np.float16)[..., 0]
    halves = np.concatenate((parts[..., 2:] & 15, parts[..., 2:] >> 4), axis=-1)  # inputs 0 to 31 of the group
    packed = pack_nibbles(halves.astype(np.float32) - np.float32(8))
    return Int4Weight(scales=scales, inputs=halves.shape[1] * 32, group=32, packed=packed)


CASES = [(Q8_0, from_q8_0, quantize_int8), (Q4_0, from_q4_0, plain)]


@pytest.mark.parametrize(("kind", "read", "quantize"), CASES)
def test_reading_is_lossless(kind, read, quantize):
    for values in samples():
        blocks = quants.quantize(values, kind)
        np.testing.assert_array_equal(read(blocks).dequantize(), quants.dequantize(blocks, kind))


def test_any_bytes_are_read():
    """Includes bytes that no quantiser writes: the code -128, negative and subnormal scales."""
    rng = np.random.default_rng(12)
    for kind, read, size in ((Q8_0, from_q8_0, 34), (Q4_0, from_q4_0, 18)):
        blocks = rng.integers(0, 256, (50, 3, size), dtype=np.uint8)
        scales = (rng.standard_normal((50, 3)) * 10.0 ** rng.integers(-8, 2, (50, 3))).astype(np.float16)
        blocks[..., :2] = scales[..., None].view(np.uint8)
        blocks = blocks.reshape(50, -1)
        np.testing.assert_array_equal(read(blocks).dequantize(), quants.dequantize(blocks, kind))


@pytest.mark.parametrize(("kind", "read", "quantize"), CASES)
def test_quantisation_gives_the_scales_and_integers_of_gguf(kind, read, quantize):
    for values in samples():
        same(quantize(values), read(quants.quantize(values, kind)))


@pytest.mark.parametrize(("kind", "read", "quantize"), [*CASES, (Q4_0, from_q4_0, quantize_int4)])
def test_numbers_from_gguf_are_stable(kind, read, quantize):
    for values in samples()[:4]:
        given = read(quants.quantize(values, kind))
        np.testing.assert_array_equal(quantize(given.dequantize()).dequantize(), given.dequantize())


def test_int4_error_is_below_q4_0():
    def error(weight: GroupedWeight, values: np.ndarray) -> np.ndarray:
        difference = weight.dequantize().astype(np.float64) - values
        return (difference**2).reshape(len(values), -1, 32).sum(axis=-1)

    assert CLIPPING
    for values in samples()[:2]:
        ours, theirs = error(quantize_int4(values), values), error(plain(values), values)
        assert (ours <= theirs * (1 + 1e-5)).all()
        assert ours.sum() < 0.97 * theirs.sum()
