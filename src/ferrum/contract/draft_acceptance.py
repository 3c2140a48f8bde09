"""How many drafts `speculative_decode` accepts, from the logits of any executor."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from numbers import Real
from typing import cast

from ferrum.core.errors import RequestError
from ferrum.core.step import Array
from ferrum.core.values import shown


def check_threshold(threshold: object) -> None:
    """Raise RequestError for an invalid threshold of lossy verification; None is exact verification."""
    if threshold is None:
        return
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or not 0 <= cast(float, threshold) <= 1:
        raise RequestError(f"must be a number between 0 and 1, got {shown(threshold)}", param="acceptance_threshold")


def count_accepted(logits: Array, drafts: Sequence[int], threshold: float | None = None) -> int:
    """Return how many leading drafts are accepted.

    Args:
        logits: float32 [k + 1, V] or [k, V], finite.
        drafts: k draft tokens.
        threshold: None accepts a draft that equals the token of greedy decoding: the lowest id of the largest logit. A
            number t accepts it if p(draft) >= t x max p in float32: 0 every draft, 1 a most likely one.
    """
    accepted = 0
    while accepted < len(drafts) and _is_accepted(logits[accepted], drafts[accepted], threshold):
        accepted += 1
    return accepted


def _is_accepted(row: Array, draft: int, threshold: float | None) -> bool:
    if threshold is None:
        return int(row.argmax()) == draft
    return _float32(math.exp(float(row[draft]) - float(row.max()))) >= _float32(threshold)


def _float32(number: float) -> float:
    """Return the float32 that is nearest to a number."""
    rounded: float = struct.unpack("f", struct.pack("f", float(number)))[0]
    return rounded
