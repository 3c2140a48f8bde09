"""Weights of several matrices of one size, one after another: those of experts, and those of heads."""

from __future__ import annotations

from typing import Final

from ferrum.core.errors import Unsupported
from ferrum.kernels.operations import Weight

PANEL: Final = 32
"""Rows of a panel. Each matrix is a whole number of panels, so that kernels can multiply by it alone."""


def rows_of_group(weight: Weight, groups: int, what: str) -> int:
    """Return the rows of each matrix in a weight of `groups` matrices.

    Args:
        what: name of the matrices in the error.

    Raises:
        Unsupported: the rows are not `groups` times a multiple of 32.
    """
    rows, rest = divmod(weight.shape[0], groups)
    if rest or rows % PANEL:
        reason = f"{weight.shape[0]} rows in {groups} matrices: each needs a multiple of {PANEL}"
        raise Unsupported(f"the size of {what}", reason)
    return rows
