"""`ShardedReplay`: one program on several ranks. The cut is below the language model, at tables and page copies.

The page table and the sampler exist once. Each rank has its own kernels, weights, pool and buffers; it needs nothing of
a step but its `StepTables` and the page copies before it. So all pools have the same pages under the same numbers, and
a rank may live in another thread, process or machine.

    DecoderLM -> StepTables, PageCopy -> rank 0: its kernels, program and pool -> the step's output
                                      -> rank 1: ...

With tensor parallelism each rank has a part of the heads and of the hidden units of the MLP. Its program then sums the
parts by an all-reduce after the output projection and after the down projection, as a collective operation inside the
program (Shoeybi et al. 2019, section 3), and gathers logits after the head. Above the program two things change:
`numerics_id` names the degree, since the sums have another order, and captured attention weights are joined by heads
(here they are those of the first rank).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ferrum.cache.page_table import PageCopy
from ferrum.kernels.interface import Kernels, NetworkOutput, Replay, StepTables
from ferrum.kernels.op_spec import Extent
from ferrum.kernels.operations import Bytes

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Rank:
    """One part of a model: kernels with an allocated pool, and the program that runs on them."""

    kernels: Kernels
    replay: Replay


class ShardedReplay(Replay):
    """A replay on all ranks at once, and the pages of all their pools (`RawPages`).

    A step ends on every rank before it ends here. If it fails on one, it fails as a whole: rows that the others have
    written lie beyond the sequences' lengths. Ranks that exchange data must end a collective operation of which one
    member has failed.

    Args:
        ranks: at least one, with equal limits. The first runs in the thread of the caller, the others in one each.
    """

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self.program = ranks[0].replay.program
        self._ranks = tuple(ranks)
        self._threads = [ThreadPoolExecutor(1, f"ferrum-rank-{number}") for number in range(1, len(ranks))]

    def submit(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:  # noqa: ARG002 - each rank has its own
        """Run one step on every rank and return the output of the first."""
        return self._on_all(lambda rank: rank.replay.submit(rank.kernels, tables))[0]

    def timed(self, kernels: Kernels, tables: StepTables) -> list[float]:  # noqa: ARG002
        return self._on_all(lambda rank: rank.replay.timed(rank.kernels, tables))[0]

    def nbytes(self, extent: Extent) -> int:
        return sum(rank.replay.nbytes(extent) for rank in self._ranks)

    def experts_read(self) -> int | None:
        return self._ranks[0].replay.experts_read()

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy the pages on every rank. If one fails, repeat all: no target is the source of another copy."""
        self._on_all(lambda rank: rank.kernels.copy_pages(copies))

    def page_bytes(self, group: str) -> int:
        """Return the bytes of a page on all ranks together."""
        return sum(rank.kernels.page_bytes(group) for rank in self._ranks)

    def read_page(self, group: str, page: int) -> Bytes:
        """Return the bytes of a page, rank after rank."""
        return np.concatenate([rank.kernels.read_page(group, page) for rank in self._ranks])

    def write_page(self, group: str, page: int, data: Bytes) -> None:
        """Write each rank's part of a page."""
        ends = np.cumsum([rank.kernels.page_bytes(group) for rank in self._ranks])
        for rank, part in zip(self._ranks, np.split(data, ends[:-1]), strict=True):
            rank.kernels.write_page(group, page, part)

    def close(self) -> None:
        """End the threads of the ranks; no step can run after this."""
        for thread in self._threads:
            thread.shutdown()

    def _on_all(self, call: Callable[[Rank], Result]) -> list[Result]:
        """Return the results of a call on every rank; raise the first error when all have ended."""
        pairs = zip(self._threads, self._ranks[1:], strict=True)
        others = [thread.submit(call, rank) for thread, rank in pairs]
        try:
            first = call(self._ranks[0])
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]
