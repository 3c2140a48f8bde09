"""`View`: a parameter as parts of a checkpoint's tensors.

Checkpoints fuse matrices, keep each expert by itself, or order rows for another rotation. A view says where the numbers
of a parameter are; `sources/viewed_tensors.py` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Runs:
    """The same rows of each of several runs of adjacent rows.

    Attributes:
        parts, whole: number of runs, and rows of each.
        first, count, step: the rows that are taken of a run: `count`, from `first` on, `step` apart.
        pairs: number of pairs of adjacent taken rows, the first ones, that are put into halves: the first rows of all
            pairs, then the second ones.
    """

    parts: int
    whole: int
    first: int
    count: int
    step: int = 1
    pairs: int = 0


Rows = slice | Runs | tuple[Runs, ...]
"""Rows of a matrix, or its columns; of several runs, one after another."""


@dataclass(frozen=True, slots=True)
class View:
    """Where a parameter's numbers are. The fields apply in this order.

    Attributes:
        sources: tensors, as matrices [N, K] with their leading axes flattened (vectors: [N]), one after another.
        width: columns of the matrix that the numbers of the sources are taken for; None: their last axis.
        rows: the rows that are taken, in this order; None: all.
        columns: the columns that are taken, in this order; None: all.
        transposed: number of equal parts of the rows, each of which is transposed; 0: none is. A vector with a width is
            such a matrix, row after row.
        otherwise: the view of a checkpoint that lacks the sources; None: there is no other one.
    """

    sources: tuple[str, ...]
    rows: Rows | None = None
    columns: Rows | None = None
    transposed: int = 0
    width: int | None = None
    otherwise: View | None = None
