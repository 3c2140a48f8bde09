"""Groups of consecutive inputs that share one scale: sizes, padding, scales in float16."""

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
"""Group sizes: whole vectors, with integer sums that float32 holds exactly (`activations.py`)."""

DEFAULT_GROUP: Final = 32
"""The group size with the smallest error, as in GGUF's Q8_0 and Q4_0."""

_PIECE: Final = 1 << 17
"""Elements processed at a time, so that temporary arrays stay in the second-level cache."""


def group_count(inputs: int, group: int) -> int:
    """Return the number of groups of a row; the last one may be incomplete."""
    assert group in GROUPS, f"group must be one of {GROUPS}, got {group}"
    return -(-inputs // group)


def in_groups(values: NDArray[Any], group: int) -> F32:
    """Reshape rows [n, K] of any float type to f32 [n, G, group], padded with zeros.

    The last axis is the slowest in memory, so that reductions over a group use whole vectors.
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


def for_each_piece(shape: tuple[int, int], work: Callable[[slice], None]) -> None:
    """Call `work` on cache-sized slices of a matrix's rows, in threads on all CPUs, in any order."""
    rows, inputs = shape
    step = max(1, _PIECE // max(1, inputs))
    pieces = [slice(begin, min(begin + step, rows)) for begin in range(0, rows, step)]
    with ThreadPoolExecutor(available_threads()) as team:
        for _ in team.map(work, pieces):
            pass  # raises the error of a piece


def float16_scales(exact: F32, format: str) -> NDArray[np.float16]:
    """Round scales to float16.

    Raises:
        ConfigError: weights are not finite, or too large for a scale in float16.
    """
    with np.errstate(over="ignore"):
        scales = exact.astype(np.float16)
    if not np.isfinite(scales).all():
        raise scale_error(format, finite=bool(np.isfinite(exact).all()))
    return scales


def scale_error(format: str, *, finite: bool) -> ConfigError:
    """Return the error for weights without scales in float16."""
    reason = "too large for scales in float16" if finite else "not finite"
    return ConfigError(f"cannot quantize to {format}: weights are {reason}", param="quantize")


def reciprocal(x: F32) -> F32:
    """Return 1 / x, and 0 for x = 0."""
    return np.divide(np.float32(1), x, out=np.zeros_like(x), where=x != 0)
