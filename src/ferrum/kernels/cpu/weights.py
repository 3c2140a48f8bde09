"""Weights and adapters in the form of the native library."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.adapters import AdapterSite, Change, LowRank, Replacement, SiteKind
from ferrum.kernels.codebooks import CODEBOOKS, packed_points
from ferrum.kernels.group_weights import PANEL
from ferrum.kernels.operations import F32, Int32, Weight

_DENSE: Final = {"float32": np.float32, "float16": np.uint16, "bfloat16": np.uint16}
"""Floating-point formats, and the element type that the library takes."""


class DenseMatrix(Protocol):
    """A floating-point weight with its elements [N, K], row-major."""

    @property
    def values(self) -> NDArray[Any]: ...


@runtime_checkable
class OrderedMatrix(Protocol):
    """A quantised weight with orders of inputs, as `quant.ordered_weight.OrderedWeight`."""

    @property
    def stored(self) -> Weight: ...
    @property
    def order(self) -> Int32: ...


class BlockMatrix(Protocol):
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
        self.native.rows(self.runtime, np.ascontiguousarray(ids, np.int32), out)
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
    if isinstance(weight, OrderedMatrix):
        plain = native_weight(library, runtime, weight.stored, blank=blank)
        return replace(plain, native=plain.native.ordered(np.ascontiguousarray(weight.order, np.int32)))
    if blank:
        format = weight.format if weight.format in library.BLOCK_FORMATS or weight.format in _DENSE else "float32"
        return NativeWeight(library.blank(format, *weight.shape), runtime, weight.shape, format, library)
    format, panels = weight_panels(library, runtime, weight)
    native = runtime.over_panels(format, panels, *weight.shape)
    return NativeWeight(native, runtime, weight.shape, format, library)


def weight_panels(library: Any, runtime: Any, weight: Weight) -> tuple[str, NDArray[np.uint8]]:
    """Return the format and the panels of a weight, uint8; an unknown format is converted to f32."""
    if weight.format in library.BLOCK_FORMATS:
        _set_codebook(library, weight.format)
        return weight.format, _panels(library, runtime, cast(BlockMatrix, weight))
    dense = weight.format in _DENSE
    floats = native_floats(cast(DenseMatrix, weight).values if dense else weight.dequantize())
    return weight.format if dense else "float32", runtime.pack(*floats)


@cache
def _set_codebook(library: Any, format: str) -> None:
    """Give the library the points of a format that numbers them."""
    name = "iq1_s" if format == "iq1_m" else format
    if name in CODEBOOKS:
        library.set_codebook(name, packed_points(name))


def _panels(library: Any, runtime: Any, weight: BlockMatrix) -> NDArray[np.uint8]:
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


# ---- Adapters in the form of the native library: matrices A as stored, matrices B in panels of 32 outputs ----

Floats: TypeAlias = tuple[str, NDArray[Any]]

_LINE: Final = 64
"""Bytes of a cache line."""

_SPARE: Final = 1 << 16
"""Bytes of an adapter's memory for the ends of lines and of panels."""


class NativeChange(NamedTuple):
    """A `Change` as the library takes it. The library borrows the arrays."""

    low_rank: tuple[Floats, Floats, int, float] | None
    bias: NDArray[np.float32] | None
    factor: NDArray[np.float32] | None
    offset: NDArray[np.float32] | None
    replaced: tuple[Floats, NDArray[np.int32] | None] | None


NativeEntry: TypeAlias = list[NativeChange | None]
"""An adapter at a site, a change for each matrix."""


class AdapterMemory:
    """One piece of memory for the matrices A and B of an adapter.

    The system puts large pieces on huge pages. With hundreds of small ones, a step waits for addresses of pages.

    Args:
        nbytes: of the matrices; what exceeds it gets its own memory.
    """

    def __init__(self, nbytes: int) -> None:
        self._bytes = np.empty(nbytes + _SPARE, np.uint8)
        self._used = -self._bytes.ctypes.data % _LINE

    def keep(self, values: NDArray[Any]) -> Floats:
        """Return the format name and a copy of the elements of a float matrix, as the library takes them."""
        name, found = native_floats(values)
        end = self._used + found.nbytes
        if end > len(self._bytes):
            return name, found
        kept = self._bytes[self._used : end].view(found.dtype).reshape(found.shape)
        kept[...] = found
        self._used = -(-end // _LINE) * _LINE
        return name, kept


@dataclass(slots=True)
class NativeSites:
    """The library's sites by the network's, whose entries hold the arrays."""

    found: dict[AdapterSite, Any] = field(default_factory=dict)

    def native(self, site: AdapterSite, library: Any) -> Any:
        """Return the library's site."""
        return self.found.setdefault(site, library.AdapterSite(site.kind is SiteKind.HEAD))

    def set(self, site: AdapterSite, slot: int, entry: NativeEntry | None, library: Any) -> None:
        """Set the entry of a slot, or remove it."""
        self.native(site, library).set(slot, entry)
        if entry is None:
            site.entries.pop(slot, None)
        else:
            site.entries[slot] = entry


def native_entry(changes: tuple[Change | None, ...], memory: AdapterMemory) -> NativeEntry:
    """Convert an adapter's changes at a site. Matrices A that are one array stay one."""
    shared = dict[int, Floats]()
    return [None if each is None else _change(each, shared, memory) for each in changes]


def _change(change: Change, shared: dict[int, Floats], memory: AdapterMemory) -> NativeChange:
    low_rank = change.low_rank
    return NativeChange(
        None if low_rank is None else _low_rank(low_rank, shared, memory),
        change.bias if low_rank is None else low_rank.bias,  # only norms have one of their own here
        change.factor,
        change.offset,
        None if change.replaced is None else _replaced(change.replaced),
    )


def _low_rank(given: LowRank, shared: dict[int, Floats], memory: AdapterMemory) -> tuple[Floats, Floats, int, float]:
    if id(given.a) not in shared:
        shared[id(given.a)] = memory.keep(given.a.reshape(-1, given.a.shape[-1]))
    a = shared[id(given.a)]
    *groups, outputs, rank = given.b.shape
    padded = np.zeros((*groups, -(-outputs // PANEL) * PANEL, rank), given.b.dtype)
    padded[..., :outputs, :] = given.b
    panels = padded.reshape(-1, PANEL, rank).transpose(0, 2, 1).reshape(-1, PANEL)  # [groups x panels x rank, PANEL]
    return a, memory.keep(panels), rank, given.scale


def _replaced(given: Replacement) -> tuple[Floats, NDArray[np.int32] | None]:
    return native_floats(given.values), given.rows
