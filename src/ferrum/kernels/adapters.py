"""Adapters (LoRA, Hu et al. 2021) as backends see them: where they change a network, and what they change there.

Files are read in `sources/adapters/`. Which rows of a step use which adapter is in `StepTables.adapters`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """A product of two small matrices that is added to outputs: y + scale (B (A x) + bias).

    Attributes:
        a: [r, K], float32, float16 or bfloat16; of an embedding [V, r], a row per token. Of a site of several groups
            (experts, heads) [groups, r, K], or [r, K] of all groups.
        b: [N, r]; of several groups [groups, N, r], or [N, r] of all groups.
        scale: alpha / r, or as the files say.
        bias: f32 [N], or None.
    """

    a: NDArray[Any]
    b: NDArray[Any]
    scale: float
    bias: F32 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Replacement:
    """Rows of a matrix that an adapter replaces.

    Attributes:
        values: [n, K], float32, float16 or bfloat16; of a norm f32 [N, 1], its weight as the network uses it.
        rows: int32 [n], ascending, the rows that they replace; None: all of them.
    """

    values: NDArray[Any]
    rows: Int32 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What an adapter changes of the outputs y of one matrix, in this order.

    1. Outputs of replaced rows are computed from the new ones.
    2. y + scale (B (A x) + bias)
    3. factor y + offset

    Files hold magnitudes and biases, from which `runtime/adapters/adapter_factors.py` computes factors and offsets.

    Attributes:
        factor, offset: f32 [N], both or none.
        magnitude: f32 [N], of the rows of the changed matrix (DoRA, Liu et al. 2024); of an embedding of its columns.
        bias: f32 [N], in place of the matrix's or the norm's own.
    """

    low_rank: LowRank | None = None
    replaced: Replacement | None = None
    factor: F32 | None = None
    offset: F32 | None = None
    magnitude: F32 | None = None
    bias: F32 | None = None

    @property
    def scales(self) -> bool:
        """Whether a request can scale it: it is a low-rank product and nothing else."""
        others = self.replaced, self.factor, self.offset, self.magnitude, self.bias
        return all(each is None for each in others)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        low_rank, new = self.low_rank, self.replaced
        arrays = (
            self.factor,
            self.offset,
            self.magnitude,
            self.bias,
            *(() if low_rank is None else (low_rank.a, low_rank.b, low_rank.bias)),
            *(() if new is None else (new.values, new.rows)),
        )
        return sum(each.nbytes for each in arrays if each is not None)


class SiteKind(Enum):
    """What the operation at a site computes."""

    LINEAR = "products of rows"
    HEAD = "logits"
    EMBEDDING = "rows of tokens"
    HEADS = "products of heads"
    EXPERTS = "products of experts"
    NORM = "norms"


class BaseMatrix(Protocol):
    """A matrix that adapters change: an `operations.Weight`."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def rows(self, ids: Int32) -> F32:
        """Return the given rows, dequantised."""


@dataclass(frozen=True, slots=True, eq=False)
class AdapterSite:
    """A place of a network whose results adapters can change: matrices over one input.

    Attributes:
        kind: of the operation.
        names: of the matrices, as `NamedWeight` has them; a tied head has the name of a head. Of experts they are gate,
            up and down; of norms the weights, of heads that of q and then that of k.
        shapes: (N, K) of each, with the rows of all groups; of a norm (N, 1).
        groups: number of heads or experts, whose matrices these hold one after another; 1 for other kinds.
        base: the matrices and their biases, in the backend's form; nothing of norms.
        entries: changes by slot, in the backend's form. They are set between steps only.
    """

    kind: SiteKind
    names: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    groups: int = 1
    base: tuple[tuple[BaseMatrix, Any | None], ...] = ()
    entries: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class AdapterSites:
    """The sites of one network, by kind and names. Walks of the network find the same ones."""

    found: dict[tuple[SiteKind, tuple[str, ...]], AdapterSite] = field(default_factory=dict)

    def site(
        self,
        kind: SiteKind,
        names: tuple[str, ...],
        base: tuple[tuple[BaseMatrix, Any | None], ...],
        groups: int = 1,
    ) -> AdapterSite:
        """Return the site of these matrices."""
        shapes = tuple(matrix.shape for matrix, _ in base)
        return self.found.setdefault((kind, names), AdapterSite(kind, names, shapes, groups, base))

    def norms(self, names: tuple[str, ...], sizes: tuple[int, ...]) -> AdapterSite:
        """Return the site of norms with these weights."""
        shapes = tuple((size, 1) for size in sizes)
        return self.found.setdefault((SiteKind.NORM, names), AdapterSite(SiteKind.NORM, names, shapes))
