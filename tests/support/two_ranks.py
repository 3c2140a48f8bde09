"""One language model on two in-process ranks, each a replica with its own weights, pool and buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ferrum.cache.page_table import PageCopy
from ferrum.kernels.interface import Kernels, NetworkOutput, StepTables
from ferrum.runtime.sharded_replay import Rank, ShardedReplay
from ferrum.verbs.load_executor import LocalExecutor


class HeardReplay:
    """A replay that keeps its last output, and fails or is led astray on command.

    Attributes:
        error: raised by each step until it is None.
        change: applied to the tables of each step.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.steps = 0
        self.output: list[np.ndarray] = []
        self.error: Exception | None = None
        self.change: Callable[[StepTables], StepTables] = lambda tables: tables

    def submit(self, kernels: Kernels, tables: StepTables) -> NetworkOutput:
        self.steps += 1
        if self.error is not None:
            raise self.error
        output: NetworkOutput = self._inner.submit(kernels, self.change(tables))
        self.output = [np.array(each) for each in output]
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class HeardKernels:
    """Kernels that count page copies, and fail or leave them out on command."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.copies = 0
        self.error: Exception | None = None
        self.dropped = False

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        if self.error is not None:
            raise self.error
        self.copies += len(copies)
        if not self.dropped:
            self.inner.copy_pages(copies)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Unheard:
    """A replay on the kernels behind `HeardKernels`: native programs run only on their own."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def submit(self, kernels: Any, tables: StepTables) -> NetworkOutput:
        output: NetworkOutput = self._inner.submit(kernels.inner, tables)
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class TwoRanks:
    """An executor on two ranks.

    Args:
        load: loads a rank; both must be equal.

    Attributes:
        close: ends the second rank's thread.
    """

    def __init__(self, load: Callable[[], LocalExecutor]) -> None:
        self.executor, second = load(), load()
        models = (self.executor.lm, second.lm)
        self.replays = [HeardReplay(_Unheard(model.replay)) for model in models]
        self.kernels = [HeardKernels(model.kernels) for model in models]
        pairs = zip(self.kernels, self.replays, strict=True)
        ranks = ShardedReplay([Rank(*pair) for pair in pairs])  # type: ignore[arg-type]
        self.executor.lm.use_ranks(ranks)
        self.close = ranks.close

    def check(self) -> None:
        """Assert that both ranks have computed the same bits and store the same bytes in every page."""
        first, second = self.replays
        assert first.steps == second.steps and self.kernels[0].copies == self.kernels[1].copies
        for ours, theirs in zip(first.output, second.output, strict=True):
            assert ours.tobytes() == theirs.tobytes(), "the ranks' outputs differ"
        for group in self.executor.pages.groups:
            for page in range(group.num_pages):
                ours, theirs = (kernels.read_page(group.name, page) for kernels in self.kernels)
                assert ours.tobytes() == theirs.tobytes(), f"page {page} of {group.name} differs"
