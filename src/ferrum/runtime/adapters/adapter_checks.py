"""Checks of an adapter's changes against the matrices of a model."""

from __future__ import annotations

import numpy as np

from ferrum.core.errors import Unsupported
from ferrum.kernels.adapters import AdapterSite, Change, LowRank, Replacement, SiteKind


def refuse_change(site: AdapterSite, index: int, change: Change) -> None:
    """Check that kernels can apply a change to a matrix of a site.

    Raises:
        Unsupported: names the matrix, and what of the change is wrong.
    """
    name, (outputs, inputs) = site.names[index], site.shapes[index]
    outputs, grouped = outputs // site.groups, site.kind in (SiteKind.HEADS, SiteKind.EXPERTS)

    def check(what: str, found: tuple[int, ...], *wanted: tuple[int, ...]) -> None:
        if found not in wanted:
            raise Unsupported(f"the adapter's {what} of {name}", f"its shape is {list(found)}, not {list(wanted[0])}")

    if site.kind is SiteKind.NORM:
        _check_norm(name, change, outputs)
        return
    low_rank, embeds = change.low_rank, site.kind is SiteKind.EMBEDDING
    if low_rank is not None:
        _check_rank(name, low_rank)
        rank, groups = low_rank.b.shape[-1], (site.groups,) if grouped else ()
        shapes = (outputs, rank, inputs, rank) if embeds else (rank, inputs, outputs, rank)
        check("A", low_rank.a.shape, (*groups, *shapes[:2]), shapes[:2])
        check("B", low_rank.b.shape, (*groups, *shapes[2:]), shapes[2:])
    if embeds:
        _check_embedding(name, change)
    if grouped and not (change.scales and (low_rank is None or low_rank.bias is None)):
        raise Unsupported(f"the adapter's change of {name}", "of heads and experts only low-rank products are changed")
    if change.replaced is not None:
        _check_rows(name, change.replaced, *site.shapes[index])
    bias = None if low_rank is None else low_rank.bias
    vectors = {"factor": change.factor, "offset": change.offset, "magnitude": change.magnitude, "bias": change.bias}
    for what, vector in {**vectors, "bias of B": bias}.items():
        if vector is not None:
            check(what, vector.shape, (inputs if embeds else outputs,))


def _check_norm(name: str, change: Change, size: int) -> None:
    new, others = change.replaced, (change.low_rank, change.factor, change.offset, change.magnitude)
    if any(each is not None for each in others) or (new is not None and new.rows is not None):
        raise Unsupported(f"the adapter's change of {name}", "of norms only whole weights and biases are replaced")
    for what, vector in (("weight", None if new is None else new.values), ("bias", change.bias)):
        shape: tuple[int, ...] = (size, 1) if what == "weight" else (size,)
        if vector is not None and (vector.shape != shape or vector.dtype != np.float32):
            found = f"{vector.dtype} {list(vector.shape)}"
            raise Unsupported(f"the adapter's {what} of {name}", f"it is {found}, not float32 {list(shape)}")


def _check_rank(name: str, low_rank: LowRank) -> None:
    if min(*low_rank.a.shape, *low_rank.b.shape) == 0:
        raise Unsupported(f"the adapter's matrices of {name}", "they are empty")


def _check_embedding(name: str, change: Change) -> None:
    """Refuse biases, and factors without a product."""
    low_rank, factors = change.low_rank, (change.factor, change.offset, change.magnitude)
    if change.bias is not None or (low_rank is not None and low_rank.bias is not None):
        raise Unsupported(f"the adapter's change of {name}", "embeddings have no biases")
    if low_rank is None and any(each is not None for each in factors):
        raise Unsupported(f"the adapter's factors of {name}", "they need a low-rank product")


def _check_rows(name: str, replaced: Replacement, outputs: int, inputs: int) -> None:
    count = outputs if replaced.rows is None else len(replaced.rows)
    if replaced.values.shape != (count, inputs):
        found = list(replaced.values.shape)
        raise Unsupported(f"the adapter's new rows of {name}", f"their shape is {found}, not {[count, inputs]}")
    rows = replaced.rows
    if rows is not None and len(rows) and (rows[0] < 0 or rows[-1] >= outputs or (rows[1:] <= rows[:-1]).any()):
        raise Unsupported(f"the adapter's new rows of {name}", f"must ascend from 0 to {outputs - 1} at most")
