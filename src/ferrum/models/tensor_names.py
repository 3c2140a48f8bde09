"""Names and reader of a decoder's parameters, and views of them as parts of a checkpoint's tensors.

The names are those of the Hugging Face Llama layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ferrum.kernels.operations import F32, Weight

EMBEDDING = "model.embed_tokens.weight"
LAYERS = "model.layers"
FINAL_NORM = "model.norm"
HEAD = "lm_head.weight"


class ParameterReader(Protocol):
    """Reader that returns each parameter once and checks its shape."""

    def matrix(self, name: str, shape: tuple[int, int], *, exact: bool = False) -> Weight:
        """Return the matrix [N, K] of that name, in the format configured at load; if `exact`, in float32."""

    def release(self, name: str) -> None:
        """Free the memory behind a matrix, of which the kernels now hold their own copy."""

    def vector(self, name: str, size: int) -> F32:
        """Return the vector of that name as f32."""


# ---- `View`: a parameter as parts of a checkpoint's tensors ----
#
# Checkpoints fuse matrices, keep each expert by itself, or order rows for another rotation. A view says where the
# numbers of a parameter are; `sources/viewed_tensors.py` reads them.


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
        part: the rows that a rank takes of the result, in this order; None: all. Of a vector, its numbers.
        otherwise: the view of a checkpoint that lacks the sources; None: there is no other one.
    """

    sources: tuple[str, ...]
    rows: Rows | None = None
    columns: Rows | None = None
    transposed: int = 0
    width: int | None = None
    part: Rows | None = None
    otherwise: View | None = None
