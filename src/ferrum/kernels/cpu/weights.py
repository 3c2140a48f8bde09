"""Packing of weights into the panels of the native library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.interface import F32, Int32, Weight

_DENSE: Final = {"float32": np.float32, "float16": np.uint16, "bfloat16": np.uint16}
"""Floating-point formats, and the element type that the library takes."""

_INTEGERS: Final = ("int8", "int4")
"""Quantised formats, stored in panels."""


class DenseSource(Protocol):
    """A floating-point weight with its elements [N, K], row-major."""

    @property
    def values(self) -> NDArray[Any]: ...


class PanelLayout(Protocol):
    """A panel layout, as `quant.panels.PanelLayout`.

    Attributes:
        name: of the layout in the library.
    """

    @property
    def name(self) -> str: ...


class PanelSource(Protocol):
    """A quantised weight with its panels.

    Attributes:
        layout: of the panels.
        panels: uint8; may be a view of a mapped file.
    """

    @property
    def layout(self) -> PanelLayout: ...
    @property
    def panels(self) -> NDArray[np.uint8]: ...


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A `Weight` in panels. The row-major original is not kept.

    Attributes:
        native: matrix of the library.
        runtime: `Runtime` of the library that multiplies.
        shape: (N, K): outputs, inputs.
        format: of the original weight.
        library: the compiled module.
    """

    native: Any
    runtime: Any
    shape: tuple[int, int]
    format: str
    library: Any

    @property
    def nbytes(self) -> int:
        """Return the bytes of the panels."""
        return int(self.native.nbytes)

    def matmul(self, x: F32) -> F32:
        """Multiply x [M, K] f32 -> [M, N] f32, with the bits of the original weight's product."""
        x = np.ascontiguousarray(x, np.float32)
        out = np.empty((len(x), self.shape[0]), np.float32)
        product = self.library.linear(self.runtime, x, [(self.native, None, None, out)], len(x), len(x))
        self.runtime.run([product])
        return out

    def rows(self, ids: Int32) -> F32:
        """Return the given rows, [len(ids), K] f32."""
        out = np.empty((len(ids), self.shape[1]), np.float32)
        self.native.rows(np.ascontiguousarray(ids, np.int32), out)
        return out

    def dequantize(self) -> F32:
        """Return the matrix [N, K] as f32."""
        return self.rows(np.arange(self.shape[0], dtype=np.int32))


def pack(library: Any, runtime: Any, weight: Weight, *, blank: bool = False) -> PackedWeight:
    """Pack a weight. Quantised panels are used in place; an unknown format is converted to f32.

    Args:
        library: the compiled module.
        runtime: a `Runtime` of the library.
        weight: of any format; a packed weight is returned unchanged.
        blank: pack sizes only, without numbers.
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
    """Return the format name and the contiguous elements of a float matrix, as the library takes them."""
    name = values.dtype.name
    return name, np.ascontiguousarray(values).view(_DENSE[name])
