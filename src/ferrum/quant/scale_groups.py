"""Groups: runs of consecutive inputs that share one scale, as every quantised format cuts a row."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import ConfigError
from ferrum.kernels.cpu.library import available_threads
from ferrum.kernels.interface import F32

GROUPS: Final = (32, 64, 128)
"""Sizes that a group may have: whole vectors, and sums of products that float32 holds exactly (`activations.py`)."""

DEFAULT_GROUP: Final = 32
"""The size of the least error, and that of GGUF's Q8_0 and Q4_0."""

_PIECE: Final = 1 << 17
"""Elements that are worked on at a time: a few temporary arrays of them stay in the second-level cache."""


def group_count(inputs: int, group: int) -> int:
    """Groups of a row of that many inputs; the last may be incomplete."""
    assert group in GROUPS, f"a group has {GROUPS} inputs, not {group}"
    return -(-inputs // group)


def in_groups(values: NDArray[Any], group: int) -> F32:
    """Rows [n, K] of any float type as f32 [n, G, group], an incomplete last group filled up with zeros.

    In memory the last axis is the slowest, so that what reduces over a group works on whole vectors.
    """
    rows, inputs = values.shape
    count = group_count(inputs, group)
    out = np.zeros((group, rows, count), np.float32).transpose(1, 2, 0)
    floats = values.astype(np.float32, copy=False)
    whole = inputs // group
    out[:, :whole] = floats[:, : whole * group].reshape(rows, whole, group)
    if whole < count:
        out[:, whole, : inputs - whole * group] = floats[:, whole * group :]
    return out


def over_pieces(shape: tuple[int, int], work: Callable[[slice], None]) -> None:
    """Do `work` for every row of a matrix of that shape, a cache-sized slice of rows at a time, on all processors.

    The slices are worked on independently and in any order; numpy lets go of the interpreter while it computes.
    """
    rows, inputs = shape
    step = max(1, _PIECE // max(1, inputs))
    pieces = [slice(begin, min(begin + step, rows)) for begin in range(0, rows, step)]
    with ThreadPoolExecutor(available_threads()) as team:
        for _ in team.map(work, pieces):
            pass  # an error of the piece is raised here


def float16_scales(exact: F32, format: str) -> NDArray[np.float16]:
    """Scales as they are stored, rounded to float16.

    Raises:
        ConfigError: weights are not finite, or too large for a scale in float16.
    """
    with np.errstate(over="ignore"):
        scales = exact.astype(np.float16)
    if not np.isfinite(scales).all():
        raise cannot_hold(format, finite=bool(np.isfinite(exact).all()))
    return scales


def cannot_hold(format: str, *, finite: bool) -> ConfigError:
    """Why weights have no scales in float16."""
    kind = "too large for scales in float16" if finite else "not finite"
    return ConfigError(f"{format} cannot hold weights that are {kind}", param="quantize")


def reciprocal(x: F32) -> F32:
    """1 / x, and 0 where x is 0."""
    return np.divide(np.float32(1), x, out=np.zeros_like(x), where=x != 0)
