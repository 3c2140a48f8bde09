"""A fault for `determinism.py` to find: one sum that is added in another order when a step has several rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import F32
from ferrum.quant import dense

SEVERAL = 2
"""Rows from which on the order is another one: requests alone then decode in the order that they always had."""


def plant_reordering() -> None:
    """Let the reference's products of dense matrices add the two halves of their terms apart, for several rows.

    This is what a library of matrix products does that cuts long sums for large shapes.
    """
    ordered = dense.product

    def product(x: F32, w: NDArray[Any]) -> F32:
        half = x.shape[1] // 2
        if len(x) < SEVERAL:
            return ordered(x, w)
        halves = ordered(x[:, :half], w[:, :half]) + ordered(x[:, half:], w[:, half:])
        return halves.astype(np.float32)

    dense.product = product  # type: ignore[attr-defined]
