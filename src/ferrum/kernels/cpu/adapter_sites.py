"""Adapters in the form of the native library: matrices A as stored, matrices B in panels of 32 outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.adapters import AdapterSite, Change, LowRank, Replacement, SiteKind
from ferrum.kernels.cpu.weights import native_floats
from ferrum.kernels.group_weights import PANEL

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
