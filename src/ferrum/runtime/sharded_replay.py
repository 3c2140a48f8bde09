"""`ShardedReplay`: a program on several ranks. The cut is below the language model, at tables and page copies.

The page table and the sampler exist once. Each rank has its own kernels, weights, pool and buffers; it needs nothing of
a step but its `StepTables` and the page copies before it. So all pools have the same pages under the same numbers.

    DecoderLM -> StepTables, PageCopy -> rank 0: its kernels, program and pool -> the step's output
                                      -> rank 1: ...

Each rank has a part of the outputs of every matrix (`models/rank_cuts.py`), and its program joins the parts by copies
(`Operations.join`). No sum crosses ranks, so every degree gives the bits of one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Any

import numpy as np

from ferrum.cache.page_table import PageCopy
from ferrum.core.errors import EngineDead
from ferrum.kernels.interface import Kernels, NetworkOutput, Replay, StepTables, with_carried
from ferrum.kernels.op_spec import Extent
from ferrum.kernels.operations import Bytes
from ferrum.runtime.rank_model import OtherRank, RankCall, RankModel, StepEnded


@dataclass(frozen=True, slots=True)
class KeptHeads:
    """The KV heads of a layer group that each rank keeps.

    A page of all ranks has the layout of a page of one rank that keeps all heads: [layers, heads, bytes]. So pages can
    be written at another number of ranks than they were read at.

    Attributes:
        layers, heads: of the group, on all ranks together.
        ranges: the first head of each rank, and the one after its last; none: each rank keeps all.
    """

    layers: int
    heads: int
    ranges: tuple[tuple[int, int], ...] = ()

    def joined(self, parts: Sequence[Bytes]) -> Bytes:
        """Return a page from the parts of all ranks; of heads that several ranks keep, those of the last."""
        if not self.ranges:
            return parts[0]
        begin, end = self.ranges[0]
        whole = np.empty((self.layers, self.heads, parts[0].size // (self.layers * (end - begin))), np.uint8)
        for (begin, end), part in zip(self.ranges, parts, strict=True):
            whole[:, begin:end] = part.reshape(self.layers, end - begin, -1)
        return whole.reshape(-1)

    def parts(self, page: Bytes, ranks: int) -> list[Bytes]:
        """Return the part of each rank of a page."""
        if not self.ranges:
            return [page] * ranks
        whole = page.reshape(self.layers, self.heads, -1)
        return [np.ascontiguousarray(whole[:, begin:end]).reshape(-1) for begin, end in self.ranges]

    def page_bytes(self, first: int) -> int:
        """Return the bytes of a page of all ranks, from those of the first rank."""
        if not self.ranges:
            return first
        begin, end = self.ranges[0]
        return first // (end - begin) * self.heads


class ShardedReplay(Replay):
    """A replay on all ranks at once, and the pages of all their pools (`RawPages`).

    A step ends on every rank before it ends here. If it fails on one, it fails as a whole: rows that the others have
    written lie beyond the sequences' lengths.

    Args:
        first: runs in the thread of the caller.
        replay: of the first rank; None walks the network.
        others: the other ranks, with equal limits.
        kept: the heads of each layer group, by name.
        end: ends the other ranks together; None: each is closed.
    """

    def __init__(
        self,
        first: RankModel,
        replay: Replay | None,
        others: Sequence[OtherRank],
        kept: Mapping[str, KeptHeads],
        end: Callable[[], None] | None = None,
    ) -> None:
        self._first, self._others, self._kept = first, tuple(others), kept
        self._end = end
        self._replay = replay
        if replay is not None:
            self.program = replay.program
        self._lock = RLock()  # pages are read while steps run
        self._steps = 0

    def submit(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:  # noqa: ARG002 - each rank has its own
        """Run one step on every rank and return the output of the first."""
        with self._lock:
            self._on_all("compute", self._next_step(), _resolved(tables))
            assert self._first.output is not None
            return self._first.output

    def timed(self, kernels: Kernels, tables: StepTables) -> list[float]:  # noqa: ARG002
        with self._lock:
            seconds: list[float] = self._on_all("timed", self._next_step(), _resolved(tables))[0]
            return seconds

    def nbytes(self, extent: Extent) -> int:
        """Return the bytes of the buffers of that extent on the first rank."""
        return 0 if self._replay is None else self._replay.nbytes(extent)

    def experts_read(self) -> int | None:
        return None if self._replay is None else self._replay.experts_read()

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy the pages on every rank. If one fails, repeat all: no target is the source of another copy."""
        self._on_all("copy_pages", list(copies))

    def page_bytes(self, group: str) -> int:
        """Return the bytes of a page of all ranks, which does not depend on their number."""
        return self._kept[group].page_bytes(self._first.kernels.page_bytes(group))

    def read_page(self, group: str, page: int) -> Bytes:
        return self._kept[group].joined(self._on_all("read_page", group, page))

    def write_page(self, group: str, page: int, data: Bytes) -> None:
        parts = self._kept[group].parts(data, 1 + len(self._others))
        self._on_each([RankCall("write_page", (group, page, part)) for part in parts])

    def on_others(self, method: str, *arguments: Any) -> list[Any]:
        """Return the results of a method of `AdapterSlots` on all ranks but the first."""
        return self._on_each([None, *[RankCall("adapters", (method, *arguments))] * len(self._others)])[1:]

    def exchanged(self) -> list[int]:
        """Return the bytes that each rank has read from others so far."""
        return self._on_all("exchanged")

    def close(self) -> None:
        """End the other ranks; no step can run after this."""
        if self._end is not None:
            self._end()
        else:
            for rank in self._others:
                rank.close()

    def _next_step(self) -> int:
        self._steps += 1
        return self._steps

    def _on_all(self, method: str, *arguments: Any) -> list[Any]:
        """Return the results of a call on every rank."""
        return self._on_each([RankCall(method, arguments)] * (1 + len(self._others)))

    def _on_each(self, calls: Sequence[RankCall | None]) -> list[Any]:
        """Return the result of a call for each rank, of which the first may have none.

        When all have ended, raise the first error, if there is any.
        """
        with self._lock:
            for rank, call in zip(self._others, calls[1:], strict=True):
                assert call is not None
                rank.start(call)  # raises if any rank is lost
            results, errors = list[Any](), list[Exception]()
            waits: list[Callable[[], Any]] = [partial(self._on_first, calls[0])]
            for result in waits + [rank.result for rank in self._others]:
                try:
                    results.append(result())
                except Exception as error:  # noqa: BLE001 - raised below
                    errors.append(error)
        if errors:
            lost = (error for error in errors if isinstance(error, EngineDead))
            own = (error for error in errors if not isinstance(error, StepEnded))
            raise next(lost, None) or next(own, errors[0])
        return results

    def _on_first(self, call: RankCall | None) -> Any:
        return None if call is None else self._first.run(call)


def _resolved(tables: StepTables) -> StepTables:
    """Return tables without tokens of other steps, which other ranks do not have."""
    return tables._replace(token_ids=with_carried(tables), carried=()) if tables.carried else tables
