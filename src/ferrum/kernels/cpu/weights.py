"""A matrix in the native library's panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import F32, Int32, Weight

_DENSE: Final = {"float32": np.float32, "float16": np.uint16, "bfloat16": np.uint16}
"""Formats of plain floats, and the type by which the library takes their elements."""

_INTEGERS: Final = ("int8", "int4")
"""Formats of integers in panels."""


class DenseSource(Protocol):
    """What a weight of one of these formats offers: its elements, [N, K] row-major."""

    @property
    def values(self) -> NDArray[Any]: ...


class PanelLayout(Protocol):
    """How panels are laid out; see `quant/panels.py`.

    Attributes:
        name: as the library calls it.
    """

    @property
    def name(self) -> str: ...


class PanelSource(Protocol):
    """What a weight of integers in groups offers.

    Attributes:
        layout: of the panels.
        panels: uint8, which may be a view of a mapped file.
    """

    @property
    def layout(self) -> PanelLayout: ...
    @property
    def panels(self) -> NDArray[np.uint8]: ...


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


def pack(library: Any, runtime: Any, weight: Weight, *, blank: bool = False) -> PackedWeight:
    """Pack a weight. Panels are taken as they lie; a format that the library does not know is multiplied in f32.

    Args:
        library: the compiled module.
        runtime: a `Runtime` of it.
        weight: any; a packed one is returned as it is.
        blank: leave the numbers out: only sizes are asked for.
    """
    if isinstance(weight, PackedWeight):
        return weight
    integers, dense = weight.format in _INTEGERS, weight.format in _DENSE
    format = weight.format if integers or dense else "float32"
    name = cast(PanelSource, weight).layout.name if integers else format
    if blank:
        native = library.blank(name, *weight.shape)
    elif integers:
        native = runtime.over_panels(name, cast(PanelSource, weight).panels, *weight.shape)
    else:
        floats = native_floats(cast(DenseSource, weight).values if dense else weight.dequantize())
        native = runtime.over_panels(name, runtime.pack(*floats), *weight.shape)
    return PackedWeight(native, runtime, weight.shape, format, library)


def native_floats(values: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    """A matrix of floats as the library takes it: the name of its format, and contiguous elements."""
    name = values.dtype.name
    return name, np.ascontiguousarray(values).view(_DENSE[name])
