"""Philox4x32-10, a counter-based random generator, and uniform variates for token draws.

A variate depends only on (seed, token id, absolute position, choice, stream). So batching, chunked prefill, preemption
and draft tokens do not change draws.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3 and table 2.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

UInt32 = NDArray[np.uint32]
F32 = NDArray[np.float32]

SAMPLE_STREAM: Final = 0
"""Stream of token draws. Any other use of a request's seed takes a different number."""

_FIXED_STREAM: Final = 1

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def _multiply(word: UInt32, multiplier: np.uint64) -> tuple[UInt32, UInt32]:
    """Return the high and low words of a 32 x 32 bit product."""
    product = word.astype(np.uint64) * multiplier
    return (product >> np.uint64(32)).astype(np.uint32), product.astype(np.uint32)


def philox4x32(counter: UInt32, key: tuple[int, int]) -> UInt32:
    """Run ten rounds over counters [4, n] with a key of two 32-bit words -> random words [4, n]."""
    c0, c1, c2, c3 = counter
    for turn in range(_ROUNDS):
        k0, k1 = (np.uint32((word + turn * step) & _WORD) for word, step in zip(key, _KEY_STEPS, strict=True))
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return np.stack([c0, c1, c2, c3])


def uniform(tokens: NDArray[np.int64], *, seed: int, position: int, choice: int, stream: int = SAMPLE_STREAM) -> F32:
    """Return one variate in (0, 1) per token id.

    Args:
        tokens: ids [n], ascending. One block of the generator serves four consecutive ids.
        seed: 64 bits, signed or unsigned; the key is its low and its high word.
        position: absolute position of the token to draw (0 is the first prompt token).
        choice: index of the request's choice.
        stream: purpose of the variate.

    Returns:
        f32 [n]: exact odd multiples of 2^-24, never 0 or 1.
    """
    blocks = tokens >> 2
    first = np.diff(blocks, prepend=-1) != 0
    counter = np.empty((4, int(first.sum())), np.uint32)
    counter[0] = blocks[first]
    counter[1:] = np.array([[position], [choice], [stream]], np.uint32)
    words = philox4x32(counter, (seed & _WORD, (seed >> 32) & _WORD))
    word: UInt32 = words[tokens & 3, np.cumsum(first) - 1]
    variates: F32 = ((word >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return variates


def fixed_numbers(count: int, seed: int) -> F32:
    """Return numbers in [-1, 1] that depend only on the seed and their index: f32 [count], for known answers."""
    counter = np.zeros((4, -(-count // 4)), np.uint32)
    counter[0], counter[3] = np.arange(counter.shape[1]), _FIXED_STREAM
    words = philox4x32(counter, (seed & _WORD, seed >> 32 & _WORD)).T.reshape(-1)[:count]
    numbers: F32 = words.view(np.int32).astype(np.float32) * np.float32(2.0**-31)
    return numbers
