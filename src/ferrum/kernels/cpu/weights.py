"""Weights in the panels of the native library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.operations import F32, Int32, Weight

_DENSE: Final = {"float32": np.float32, "float16": np.uint16, "bfloat16": np.uint16}
"""Floating-point formats, and the element type that the library takes."""


class DenseSource(Protocol):
    """A floating-point weight with its elements [N, K], row-major."""

    @property
    def values(self) -> NDArray[Any]: ...


class BlockSource(Protocol):
    """A quantised weight, as `quant.block_weight.BlockWeight`.

    Attributes:
        panels: uint8; may be a view of a mapped file.
        gguf: the type and the blocks of a GGUF file, or None.
    """

    @property
    def panels(self) -> NDArray[np.uint8]: ...
    @property
    def gguf(self) -> tuple[str, NDArray[np.uint8]] | None: ...


@dataclass(frozen=True, slots=True, eq=False)
class NativeWeight:
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
        product = self.library.linear(
            self.runtime, x, [(self.native, None, None, None, out)], None, len(x), len(x), None
        )
        self.runtime.run([product])
        return out

    def rows(self, ids: Int32) -> F32:
        """Return the given rows, [len(ids), K] f32."""
        out = np.empty((len(ids), self.shape[1]), np.float32)
        self.native.rows(np.ascontiguousarray(ids, np.int32), out)
        return out

    def part(self, begin: int, end: int) -> NativeWeight:
        """Return rows `begin` to `end` - 1, which are whole panels."""
        native = self.native.part(begin, end)
        return NativeWeight(native, self.runtime, (end - begin, self.shape[1]), self.format, self.library)

    def dequantize(self) -> F32:
        """Return the matrix [N, K] as f32."""
        return self.rows(np.arange(self.shape[0], dtype=np.int32))


def native_weight(library: Any, runtime: Any, weight: Weight, *, blank: bool = False) -> NativeWeight:
    """Return a weight in panels. Quantised ones are used in place; an unknown format is converted to f32.

    Args:
        library: the compiled module.
        runtime: a `Runtime` of the library.
        weight: of any format; a native one is returned unchanged.
        blank: sizes only, without numbers.
    """
    if isinstance(weight, NativeWeight):
        return weight
    blocks, dense = weight.format in library.BLOCK_FORMATS, weight.format in _DENSE
    format = weight.format if blocks or dense else "float32"
    if blank:
        native = library.blank(format, *weight.shape)
    elif blocks:
        native = runtime.over_panels(format, _panels(library, runtime, cast(BlockSource, weight)), *weight.shape)
    else:
        floats = native_floats(cast(DenseSource, weight).values if dense else weight.dequantize())
        native = runtime.over_panels(format, runtime.pack(*floats), *weight.shape)
    return NativeWeight(native, runtime, weight.shape, format, library)


def _panels(library: Any, runtime: Any, weight: BlockSource) -> NDArray[np.uint8]:
    """Return panels: laid out by the library if it knows the type of a file's blocks, else by `quant`."""
    if weight.gguf is None or weight.gguf[0] not in library.BLOCK_TYPES:
        return weight.panels.reshape(-1)
    type, blocks = weight.gguf
    panels: NDArray[np.uint8] = runtime.pack_blocks(type, np.ascontiguousarray(blocks))
    return panels


def native_floats(values: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    """Return the format name and the contiguous elements of a float matrix, as the library takes them."""
    name = values.dtype.name
    return name, np.ascontiguousarray(values).view(_DENSE[name])
