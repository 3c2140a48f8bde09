"""Weights of floating-point numbers as they are: float32, float16, bfloat16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ferrum.core.errors import ConfigError
from ferrum.kernels.interface import F32, Int32
from ferrum.kernels.reference.reference_math import product, round_bf16

FORMATS: Final = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
"""Format names and their numpy dtypes."""

_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class DenseWeight:
    """A `Weight` whose elements are plain floats.

    bfloat16 rounds the inputs of a product to bfloat16, as the hardware's dot products take them. float16 leaves them
    in f32: activations of real models pass 65504, the largest float16, while the weights themselves are exact.

    Attributes:
        values: [N, K] of a dtype in `FORMATS`; may be a read-only view of a mapped file, and is never copied whole.
    """

    values: NDArray[Any]

    def __post_init__(self) -> None:
        assert self.values.ndim == 2, "a weight is a matrix"
        assert self.values.dtype in FORMATS.values(), "a dense weight is of a floating-point format"

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs, inputs."""
        outputs, inputs = self.values.shape
        return outputs, inputs

    @property
    def format(self) -> str:
        """Its name in `FORMATS`."""
        return self.values.dtype.name

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.values.nbytes

    def matmul(self, x: F32) -> F32:
        """x [M, K] f32 -> [M, N] f32, terms added in ascending k."""
        return product(round_bf16(x) if self.format == "bfloat16" else x, self.values)

    def rows(self, ids: Int32) -> F32:
        """The given rows, [len(ids), K] f32."""
        return self.values[ids].astype(np.float32)

    def dequantize(self) -> F32:
        """The matrix [N, K] as f32."""
        return self.values.astype(np.float32)


def cast(values: NDArray[Any], format: str) -> NDArray[Any]:
    """The same numbers in another floating-point format, rounded to the nearest, ties to even.

    Works through pieces that fit in a core's cache, so that beside the result nothing large is held. In the format
    already, the array is returned as it is.

    Args:
        values: [N, ...] of a dtype in `FORMATS`.
        format: a key of `FORMATS`.

    Raises:
        ConfigError: a finite number is beyond the range of the format.
    """
    wanted = FORMATS[format]
    if values.dtype == wanted:
        return values
    out = np.empty(values.shape, wanted)
    rows = max(1, _PIECE_BYTES // max(1, values[:1].nbytes))
    for begin in range(0, len(values), rows):
        piece = values[begin : begin + rows].astype(np.float32)  # exact: f32 holds every number of every format
        with np.errstate(over="ignore"):
            out[begin : begin + rows] = piece
        lost = ~np.isfinite(out[begin : begin + rows]) & np.isfinite(piece)
        if lost.any():
            raise ConfigError(f"{piece[lost][0]:g} is beyond the range of {format}", param="dtype")
    return out
