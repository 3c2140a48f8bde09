"""A matrix in the native library's panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import F32, Int32, Weight

_DENSE: Final = {"float32": np.float32, "float16": np.uint16, "bfloat16": np.uint16}
"""Formats of plain floats, and the type by which the library takes their elements."""


class DenseSource(Protocol):
    """What a weight of one of these formats offers: its elements, [N, K] row-major."""

    @property
    def values(self) -> NDArray[Any]: ...  # noqa: D102


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A `Weight` packed once for one row and for many; the row-major original is not kept.

    Attributes:
        native: the library's matrix.
        runtime: the library's runtime, which multiplies.
        shape: (N, K): outputs, inputs.
        format: as of the weight it was packed from.
        library: the compiled module.
    """

    native: Any
    runtime: Any
    shape: tuple[int, int]
    format: str
    library: Any

    @property
    def nbytes(self) -> int:
        """Bytes of the panels."""
        return int(self.native.nbytes)

    def matmul(self, x: F32) -> F32:
        """x [M, K] f32 -> [M, N] f32, each element in ascending k."""
        x = np.ascontiguousarray(x, np.float32)
        out = np.empty((len(x), self.shape[0]), np.float32)
        product = self.library.linear(self.runtime, x, [(self.native, None, None, out)], len(x), len(x))
        self.runtime.run([product])
        return out

    def rows(self, ids: Int32) -> F32:
        """The given rows, [len(ids), K] f32."""
        out = np.empty((len(ids), self.shape[1]), np.float32)
        self.native.rows(np.ascontiguousarray(ids, np.int32), out)
        return out

    def dequantize(self) -> F32:
        """The matrix [N, K] as f32."""
        return self.rows(np.arange(self.shape[0], dtype=np.int32))


def pack(library: Any, runtime: Any, weight: Weight) -> PackedWeight:
    """Pack a weight. A format without native panels is dequantised first, and multiplied in f32.

    Args:
        library: the compiled module.
        runtime: a `Runtime` of it.
        weight: any; a packed one is returned as it is.
    """
    if isinstance(weight, PackedWeight):
        return weight
    dense = weight.format in _DENSE
    name = weight.format if dense else "float32"
    values = cast(DenseSource, weight).values if dense else weight.dequantize()
    native = runtime.pack(name, np.ascontiguousarray(values).view(_DENSE[name]))
    return PackedWeight(native, runtime, weight.shape, name, library)
