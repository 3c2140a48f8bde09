"""Floating-point weights: float32, float16, bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import ConfigError
from ferrum.kernels.operations import F32, Int32
from ferrum.kernels.reference.reference_math import product

FORMATS: Final = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
"""Format names and their numpy dtypes."""

_PIECE: Final = 1 << 22
"""Numbers converted at a time by `by_rows`."""

_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class DenseWeight:
    """A `Weight` of floats.

    bfloat16 rounds the inputs of a product to bfloat16, as the dot products of the hardware take them, and adds
    terms in pairs. float16 keeps them in f32, because activations of real models exceed 65504, the largest float16.

    Attributes:
        values: [N, K] of a dtype in `FORMATS`; may be a read-only view of a mapped file. Never copied as a whole.
    """

    values: NDArray[Any]

    def __post_init__(self) -> None:
        assert self.values.ndim == 2, "a weight is a matrix"
        assert self.values.dtype in FORMATS.values(), "a dense weight has a floating-point format"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs, inputs."""
        outputs, inputs = self.values.shape
        return outputs, inputs

    @property
    def format(self) -> str:
        """Name in `FORMATS`."""
        return self.values.dtype.name

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.values.nbytes

    def matmul(self, x: F32) -> F32:
        """Multiply x [M, K] f32 -> [M, N] f32, terms in the order of `reference_math.product`."""
        return product(x, self.values)

    def rows(self, ids: Int32) -> F32:
        """Return the given rows, [len(ids), K] f32."""
        return self.values[ids].astype(np.float32)

    def part(self, begin: int, end: int) -> DenseWeight:
        """Return rows `begin` to `end` - 1, a view."""
        return DenseWeight(self.values[begin:end])

    def dequantize(self) -> F32:
        """Return the matrix [N, K] as f32."""
        return self.values.astype(np.float32)


def by_rows(shape: tuple[int, int], convert: Callable[[slice], F32]) -> F32:
    """Return a matrix that `convert` gives by rows, so that what it makes on the way stays small."""
    out = np.empty(shape, np.float32)
    step = max(1, _PIECE // shape[1])
    for begin in range(0, len(out), step):
        rows = slice(begin, min(begin + step, len(out)))
        with np.errstate(over="ignore", invalid="ignore"):
            out[rows] = convert(rows)
    return out


def cast(values: NDArray[Any], format: str) -> NDArray[Any]:
    """Convert to another floating-point format, rounded to the nearest, ties to even.

    Converts cache-sized pieces, so that no second large array is held. Returns an array of the same format unchanged.

    Args:
        values: [N, ...] of a dtype in `FORMATS`.
        format: a key of `FORMATS`.

    Raises:
        ConfigError: a finite number exceeds the range of the format.
    """
    dtype = FORMATS[format]
    if values.dtype == dtype:
        return values
    out = np.empty(values.shape, dtype)
    rows = max(1, _PIECE_BYTES // max(1, values[:1].nbytes))
    for begin in range(0, len(values), rows):
        piece = values[begin : begin + rows].astype(np.float32)  # exact: f32 holds every number of every format
        with np.errstate(over="ignore"):
            out[begin : begin + rows] = piece
        lost = ~np.isfinite(out[begin : begin + rows]) & np.isfinite(piece)
        if lost.any():
            limit = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
            raise ConfigError(f"weight {piece[lost][0]:g} exceeds the range of {format} ({limit:g})", param="dtype")
    return out


def blank_row(columns: int) -> DenseWeight:
    """Return a table of one row of zeros, for rows of a step that are all given."""
    return DenseWeight(np.zeros((1, columns), np.float32))
