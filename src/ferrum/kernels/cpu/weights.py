"""A matrix in the native library's panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import F32, Int32, Weight

_DENSE: Final = {"float32": np.float32, "float16": np.uint16, "bfloat16": np.uint16}
"""Formats of plain floats, and the type by which the library takes their elements."""

_GROUP: Final = 32
"""Inputs that share a scale in the library's panels of integers."""


class DenseSource(Protocol):
    """What a weight of one of these formats offers: its elements, [N, K] row-major."""

    @property
    def values(self) -> NDArray[Any]: ...  # noqa: D102


class GroupedSource(Protocol):
    """What a weight of integers in groups offers; see `quant/`.

    Attributes:
        group: inputs that share a scale.
        scales: float16 [N, G].
        codes: of int8: int8 [N, G x group].
        packed: of int4: uint8 [N, G x group / 2], two codes + 8 to a byte, the first in the low bits.
        zero_points: of int4, where codes stand for anything but code - 8.
    """

    @property
    def group(self) -> int: ...  # noqa: D102
    @property
    def scales(self) -> NDArray[np.float16]: ...  # noqa: D102
    @property
    def codes(self) -> NDArray[np.int8]: ...  # noqa: D102
    @property
    def packed(self) -> NDArray[np.uint8]: ...  # noqa: D102
    @property
    def zero_points(self) -> NDArray[np.uint8] | None: ...  # noqa: D102


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
    if weight.format in ("int8", "int4"):
        grouped = cast(GroupedSource, weight)
        if grouped.group == _GROUP and (weight.format == "int8" or grouped.zero_points is None):
            codes = grouped.codes.view(np.uint8) if weight.format == "int8" else grouped.packed
            native = runtime.pack_codes(weight.format, codes, grouped.scales.view(np.uint16), weight.shape[1])
            return PackedWeight(native, runtime, weight.shape, weight.format, library)
    dense = weight.format in _DENSE
    name = weight.format if dense else "float32"
    values = cast(DenseSource, weight).values if dense else weight.dequantize()
    native = runtime.pack_floats(name, np.ascontiguousarray(values).view(_DENSE[name]))
    return PackedWeight(native, runtime, weight.shape, name, library)
