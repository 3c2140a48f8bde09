"""The order of tokens: greater logits first, then lower ids. These functions do not sort the whole vocabulary."""

from __future__ import annotations

import numpy as np

from ferrum.sampling.probability_mass import F32, Int64


def top(logits: F32, count: int) -> Int64:
    """Return the indices of the first `count` of f32 [V] (at most V), best first."""
    size = logits.size
    if count >= size:
        return np.argsort(-logits, kind="stable")
    if count <= 0:
        return np.empty(0, np.int64)
    boundary = np.partition(logits, size - count)[size - count]
    above = np.flatnonzero(logits > boundary)
    level = np.flatnonzero(logits == boundary)[: count - above.size]
    return np.concatenate([above[np.argsort(-logits[above], kind="stable")], level])


def rank(logits: F32, token: int) -> int:
    """Return the rank of the token, 1 for the most likely."""
    greater = np.count_nonzero(logits > logits[token])
    return 1 + int(greater) + int(np.count_nonzero(logits[:token] == logits[token]))
