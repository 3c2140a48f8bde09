"""`Ranks`: which outputs of each matrix a rank computes, if several ranks compute a model.

Each output keeps its whole sum on one rank, and ranks exchange copies only, so bits do not depend on the degree. This
module decides the cuts; `Builder` makes the parts, `runtime/ranks/` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from ferrum.core.errors import Unsupported
from ferrum.kernels.group_weights import PANEL
from ferrum.models.tensor_names import Rows
from ferrum.nn.linear import Starts


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that compute a model, and one of them.

    Attributes:
        count: tensor_parallel_size.
        rank: from 0. Rank 0 has the largest parts.
    """

    count: int = 1
    rank: int = 0

    def panels(self, name: str, outputs: int) -> Starts:
        """Return the cut of a matrix at whole panels of 32 outputs. Raises Unsupported if it has too few."""
        panels = -(-outputs // PANEL)
        if panels < self.count:
            raise self.refusal(f"{name} has {outputs} outputs, and a rank takes at least {PANEL}")
        return tuple(min(outputs, PANEL * start) for start in _even(panels, self.count))

    def own(self, starts: Starts) -> slice:
        """Return the part of this rank."""
        return slice(starts[self.rank], starts[self.rank + 1])

    def check(self, name: str, part: slice, outputs: int) -> None:
        """Refuse a part that does not consist of whole panels. Raises Unsupported."""
        cut = next((row for row in (part.start, part.stop) if row % PANEL and row != outputs), None)
        if cut is not None:
            raise self.refusal(f"{name} would be cut at output {cut}, within a panel of {PANEL}")

    def refusal(self, reason: str) -> Unsupported:
        """Return the error for a model that cannot be cut."""
        return Unsupported(f"tensor_parallel_size {self.count}", f"{reason}; use another degree")


ONE_RANK: Final = Ranks()
"""The only rank of a model that is not cut."""


class MatrixPart(NamedTuple):
    """The rows of a matrix that a rank has, and the shape of the whole."""

    shape: tuple[int, int]
    rows: Rows


@dataclass(frozen=True, slots=True)
class HeadCut:
    """The query heads of each rank, and the KV heads that they read.

    Attributes:
        queries: the first query head of each rank, and the number of all.
        stored: the first KV head of each rank, and the one after its last. With fewer KV heads than ranks, several
            ranks keep the same head.
    """

    queries: Starts
    stored: tuple[tuple[int, int], ...]


def cut_heads(ranks: Ranks, name: str, heads: int, kv_heads: int) -> HeadCut:
    """Return the cut of attention by heads. Raises Unsupported if a rank would have none.

    Args:
        name: of the part, for messages.
        heads, kv_heads: query heads, and KV heads that runs of equal numbers of them share.
    """
    group, count = heads // kv_heads, ranks.count
    if kv_heads >= count:
        starts = _even(kv_heads, count)
        return HeadCut(tuple(group * start for start in starts), tuple(pairwise(starts)))
    sharing, rest = divmod(count, kv_heads)
    if rest or group < sharing:
        shape = f"{heads} query heads and {kv_heads} KV heads"
        raise ranks.refusal(f"{name} has {shape}, which {count} ranks cannot share evenly")
    queries = tuple(head * group + start for head in range(kv_heads) for start in _even(group, sharing)[:-1])
    return HeadCut((*queries, heads), tuple((rank // sharing, rank // sharing + 1) for rank in range(count)))


def _even(number: int, count: int) -> Starts:
    """Return where parts of a number begin, the larger ones first, and the number."""
    return tuple(-(-number * rank // count) for rank in range(count + 1))
