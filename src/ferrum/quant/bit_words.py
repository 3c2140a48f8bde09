"""Small integers packed into words of 32 bits, lowest bits first, as GPTQ, AWQ and compressed-tensors store them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import Bytes

_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Outputs in a word of AutoAWQ, from the lowest bits."""


def words_for(count: int, bits: int) -> int:
    """Return the number of words that hold `count` integers."""
    return -(-count * bits // 32)


def pairs(packed: Bytes) -> Bytes:
    """Return the low and the high four bits of each byte in turn: [..., n] -> [..., 2n]."""
    wide = packed.astype("<u2")
    wide |= wide << np.uint16(4)
    wide &= np.uint16(0x0F0F)
    return wide.view(np.uint8)


def unpack(words: NDArray[Any], bits: int, count: int) -> Bytes:
    """Return integers of 4 or 8 bits that are packed along the last axis: [..., words] -> [..., count]."""
    held = np.ascontiguousarray(words).view(np.uint8)
    return (pairs(held) if bits == 4 else held)[..., :count]


def unpack_awq(words: NDArray[Any]) -> Bytes:
    """Return AWQ's integers of 4 bits, of which a word has those of eight outputs: [rows, words] -> [8 words, rows]."""
    turned = np.ascontiguousarray(words.T).view("<u4")  # [words, rows]
    out = np.empty((len(turned), 8, turned.shape[1]), np.uint8)
    for place, output in enumerate(_AWQ_ORDER):
        out[:, output] = turned >> np.uint32(4 * place) & np.uint32(15)
    return out.reshape(-1, turned.shape[1])


def add_one(words: NDArray[Any], bits: int) -> NDArray[np.uint32]:
    """Return words with one added to each integer, carries included.

    GPTQ's first version stores zero points less one. Its writers subtract from whole words, so a zero point of 0
    borrows from its neighbours, and only the addition to whole words restores it.
    """
    ones = np.uint32(0x11111111 if bits == 4 else 0x01010101)
    return np.ascontiguousarray(words).view("<u4").astype(np.uint32) + ones
