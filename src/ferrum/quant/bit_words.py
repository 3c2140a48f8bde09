"""Small integers packed into words of 32 bits, lowest bits first, as quantised directories store them."""

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
    """Return integers of up to 8 bits that are packed along the last axis: [..., words] -> [..., count].

    Those of 3, 5 or 6 bits may begin in a word and end in the next one.
    """
    held = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return held[..., :count]
    if bits == 4:
        return pairs(held)[..., :count]
    if 8 % bits == 0:
        parts: Bytes = held[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
        flat: Bytes = parts.reshape(*held.shape[:-1], -1)
        return flat[..., :count]
    begins = np.arange(count) * bits
    wide = np.concatenate((held, np.zeros((*held.shape[:-1], 1), np.uint8)), axis=-1)
    low, high = wide[..., begins // 8], wide[..., begins // 8 + 1].astype(np.uint16) << np.uint16(8)
    spread: NDArray[np.uint16] = (low | high) >> (begins % 8).astype(np.uint16) & np.uint16((1 << bits) - 1)
    return spread.astype(np.uint8)


def unpack_awq(words: NDArray[Any]) -> Bytes:
    """Return AWQ's integers of 4 bits, of which a word has those of eight outputs: [rows, words] -> [8 words, rows]."""
    turned = np.ascontiguousarray(words.T).view("<u4")  # [words, rows]
    out = np.empty((len(turned), 8, turned.shape[1]), np.uint8)
    for place, output in enumerate(_AWQ_ORDER):
        out[:, output] = turned >> np.uint32(4 * place) & np.uint32(15)
    return out.reshape(-1, turned.shape[1])


def unpack_raised(words: NDArray[Any], bits: int, count: int) -> Bytes:
    """Return the integers of `unpack` with one added to each.

    GPTQ's first version stores zero points less one. Its writers subtract from whole words, so a zero point of 0
    borrows from its neighbours, and only the addition to whole words restores it. Integers of 3 bits are in several
    words: to them it is added one by one.
    """
    if 32 % bits:
        return unpack(words, bits, count) + np.uint8(1) & np.uint8((1 << bits) - 1)
    ones = np.uint32(((1 << 32) - 1) // ((1 << bits) - 1))
    return unpack(np.ascontiguousarray(words).view("<u4") + ones, bits, count)
