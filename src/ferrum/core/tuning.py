"""Search for the batch size that a machine decodes fastest with."""

from __future__ import annotations

from collections.abc import Callable

from ferrum.core.policy_config import POLICY


def fastest_batch_size(seconds: Callable[[int], float], limit: int) -> int:
    """Return the batch size beyond which doubling gains less than `POLICY.batch_gain`.

    A decode step reads all weights once whatever its batch size, so throughput grows until arithmetic is the limit.

    Args:
        seconds: duration of a decode step with this many sequences; infinite if they do not fit.
        limit: largest size that can run, at least 1.
    """
    best, rate = 1, 1 / max(seconds(1), 1e-9)
    while 2 * best <= limit:
        larger = 2 * best / max(seconds(2 * best), 1e-9)
        if larger <= POLICY.batch_gain * rate:
            break
        best, rate = 2 * best, larger
    return best
