"""Which drafts `speculative_decode` accepts, from logits alone."""

from __future__ import annotations

import numpy as np
import pytest

from ferrum.core.errors import RequestError
from ferrum.verbs.model_executor import check_threshold, count_accepted

PEAKS = np.log(np.array([[0.5, 0.3, 0.2], [0.2, 0.4, 0.4], [0.6, 0.3, 0.1]])).astype(np.float32)


@pytest.mark.parametrize(
    ("drafts", "threshold", "count"),
    [
        ([0, 1, 0], 1.0, 3),
        ([0, 2, 0], 1.0, 3),
        ([1, 1, 0], 1.0, 0),
        ([1, 1, 0], 0.59, 3),
        ([1, 1, 0], 0.61, 0),
        ([0, 0, 0], 0.45, 3),
        ([0, 0, 2], 0.45, 2),
        ([2, 0, 2], 0.0, 3),
        ([], 0.5, 0),
    ],
)
def test_lossy_threshold_compares_with_the_most_likely_token(drafts: list[int], threshold: float, count: int) -> None:
    assert count_accepted(PEAKS, drafts, threshold) == count


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan"), True, "x"])
def test_invalid_threshold_is_refused(threshold: object) -> None:
    with pytest.raises(RequestError) as caught:
        check_threshold(threshold)
    assert caught.value.param == "acceptance_threshold"
