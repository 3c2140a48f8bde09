"""The part of an adapter that a rank needs: matrices A whole, B and all else by the rows of its matrices.

So each output of a rank keeps the whole sum of its change, and no bit depends on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ferrum.kernels.adapters import AdapterSite, Change, LowRank, Replacement, SiteKind
from ferrum.models.rank_cuts import MatrixPart
from ferrum.sources.viewed_tensors import index_of

Index = slice | NDArray[np.int64]


def whole_site(site: AdapterSite, parts: Mapping[str, MatrixPart]) -> AdapterSite:
    """Return a site with the shapes and the groups of all ranks together."""
    shapes = tuple(
        (parts[name].shape[0], own[1]) if name in parts else own
        for name, own in zip(site.names, site.shapes, strict=True)
    )
    groups = site.groups
    if site.kind is SiteKind.HEADS:
        groups = groups * shapes[0][0] // site.shapes[0][0]
    return replace(site, shapes=shapes, groups=groups)


def part_of_change(change: Change, site: AdapterSite, part: MatrixPart) -> Change | None:
    """Return what a change of a whole matrix changes of a rank's rows; None: nothing.

    Args:
        site: of this rank.
        part: its rows of the matrix.
    """
    rows = index_of(part.rows)
    if site.kind is SiteKind.HEADS:
        assert change.low_rank is not None and isinstance(rows, slice), "of heads only products are changed, by heads"
        size = (rows.stop - rows.start) // site.groups
        return replace(change, low_rank=_heads(change.low_rank, slice(rows.start // size, rows.stop // size)))
    if site.kind is SiteKind.EXPERTS:
        assert change.low_rank is not None, "of experts only products are changed"
        assert not isinstance(rows, slice), "the same rows of each expert"
        own = rows[: len(rows) // site.groups]
        return replace(change, low_rank=replace(change.low_rank, b=change.low_rank.b[..., own, :]))
    made = replace(
        change,
        low_rank=None if change.low_rank is None else _rows(change.low_rank, rows),
        replaced=None if change.replaced is None else _replaced(change.replaced, rows, part.shape[0]),
        factor=_numbers(change.factor, rows),
        offset=_numbers(change.offset, rows),
        magnitude=_numbers(change.magnitude, rows),
        bias=_numbers(change.bias, rows),
    )
    return made if made.nbytes else None


def _numbers(values: NDArray[Any] | None, rows: Index) -> NDArray[Any] | None:
    return None if values is None else np.ascontiguousarray(values[rows])


def _rows(low_rank: LowRank, rows: Index) -> LowRank:
    return replace(low_rank, b=np.ascontiguousarray(low_rank.b[rows]), bias=_numbers(low_rank.bias, rows))


def _heads(low_rank: LowRank, heads: slice) -> LowRank:
    """Return the matrices of some heads; those of all heads stay."""
    a, b = (each[heads] if each.ndim == 3 else each for each in (low_rank.a, low_rank.b))
    return replace(low_rank, a=a, b=b)


def _replaced(new: Replacement, rows: Index, count: int) -> Replacement | None:
    """Return the new rows among these, with their numbers there; None if there are none."""
    if new.rows is None:
        return Replacement(np.ascontiguousarray(new.values[rows]))
    own = np.full(count, -1, np.int32)
    own[rows] = np.arange(len(own[rows]), dtype=np.int32)
    places = own[new.rows]
    order = np.argsort(places, kind="stable")[np.count_nonzero(places < 0) :]
    return Replacement(new.values[order], places[order]) if len(order) else None
