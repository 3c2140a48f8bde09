"""How many sequences a step should hold on this machine: measured, not guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

WORTH_IT: Final = 1.05
"""A larger batch has to bring at least this many times the throughput of the best smaller one."""


def fastest_batch_size(seconds: Callable[[int], float], limit: int) -> int:
    """The batch size beyond which doubling no longer pays.

    Decoding reads all weights once per step whatever the batch size, so throughput grows until arithmetic is the limit.

    Args:
        seconds: duration of a decode step of so many sequences; infinite where they do not fit.
        limit: largest size that can run, at least 1.
    """
    best, rate = 1, 1 / max(seconds(1), 1e-9)
    while 2 * best <= limit:
        larger = 2 * best / max(seconds(2 * best), 1e-9)
        if larger <= WORTH_IT * rate:
            break
        best, rate = 2 * best, larger
    return best
