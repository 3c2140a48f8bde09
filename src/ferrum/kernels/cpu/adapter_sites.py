"""Adapters in the form of the native library: matrices A as stored, matrices B in panels of 32 outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.adapters import AdapterSite, Change, LowRank, Replacement
from ferrum.kernels.cpu.weights import native_floats
from ferrum.kernels.group_weights import PANEL

Floats: TypeAlias = tuple[str, NDArray[Any]]


class NativeChange(NamedTuple):
    """A `Change` as the library takes it. The library borrows the arrays."""

    low_rank: tuple[Floats, Floats, int, float] | None
    bias: NDArray[np.float32] | None
    factor: NDArray[np.float32] | None
    offset: NDArray[np.float32] | None
    replaced: tuple[Floats, NDArray[np.int32] | None] | None


NativeEntry: TypeAlias = list[NativeChange | None]
"""An adapter at a site, a change for each matrix."""


@dataclass(slots=True)
class NativeSites:
    """The library's sites by the network's, whose entries hold the arrays."""

    found: dict[AdapterSite, Any] = field(default_factory=dict)

    def native(self, site: AdapterSite, library: Any) -> Any:
        """Return the library's site."""
        return self.found.setdefault(site, library.AdapterSite())

    def set(self, site: AdapterSite, slot: int, entry: NativeEntry | None, library: Any) -> None:
        """Set the entry of a slot, or remove it."""
        self.native(site, library).set(slot, entry)
        if entry is None:
            site.entries.pop(slot, None)
        else:
            site.entries[slot] = entry


def native_entry(changes: tuple[Change | None, ...]) -> NativeEntry:
    """Convert an adapter's changes at a site. Matrices A that are one array stay one."""
    shared = dict[int, Floats]()
    return [None if each is None else _change(each, shared) for each in changes]


def _change(change: Change, shared: dict[int, Floats]) -> NativeChange:
    low_rank = change.low_rank
    return NativeChange(
        None if low_rank is None else _low_rank(low_rank, shared),
        None if low_rank is None else low_rank.bias,
        change.factor,
        change.offset,
        None if change.replaced is None else _replaced(change.replaced),
    )


def _low_rank(given: LowRank, shared: dict[int, Floats]) -> tuple[Floats, Floats, int, float]:
    a = shared.setdefault(id(given.a), native_floats(given.a.reshape(-1, given.a.shape[-1])))
    *groups, outputs, rank = given.b.shape
    padded = np.zeros((*groups, -(-outputs // PANEL) * PANEL, rank), given.b.dtype)
    padded[..., :outputs, :] = given.b
    panels = padded.reshape(-1, PANEL, rank).transpose(0, 2, 1).reshape(-1, PANEL)  # [groups x panels x rank, PANEL]
    return a, native_floats(panels), rank, given.scale


def _replaced(given: Replacement) -> tuple[Floats, NDArray[np.int32] | None]:
    return native_floats(given.values), given.rows
