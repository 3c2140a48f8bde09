"""A model on several ranks in one process: each rank has its own kernels, part of the weights, pool and thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ferrum.core.config import ModelConfig
from ferrum.kernels.exchange import memory_bytes
from ferrum.models.rank_cuts import Ranks
from ferrum.runtime.load import Assembled, Bounds, RankPart, assemble
from ferrum.runtime.rank_model import OtherRank, RankCall, RankModel
from ferrum.runtime.sharded_replay import ShardedReplay
from ferrum.sources.checkpoint import TensorStore
from ferrum.sources.read_model import ReadModel
from ferrum.verbs.load_executor import LocalExecutor


class ThreadRank(OtherRank):
    """A rank in a thread.

    Attributes:
        before: called with each call before it runs; it may raise, or change the call.
    """

    def __init__(self, model: RankModel) -> None:
        self.model = model
        self._thread = ThreadPoolExecutor(1, "ferrum-rank")
        self._pending: Future[Any] | None = None
        self.before: Callable[[RankCall], RankCall] = lambda call: call

    def start(self, call: RankCall) -> None:
        self._pending = self._thread.submit(self._run, call)

    def _run(self, call: RankCall) -> Any:
        try:
            call = self.before(call)
        except Exception:
            if call.method == "compute":
                self.model.exchange.end(call.arguments[0])
            raise
        return self.model.run(call)

    def result(self) -> Any:
        assert self._pending is not None
        return self._pending.result()

    def close(self) -> None:
        self._thread.shutdown()


class RankThreads:
    """An executor on several ranks in threads.

    Args:
        count: of ranks.
        model: its directory or file.
        page_size, max_rows: see `load_executor`.
        store: its tensors; None opens the model.
        options: of `ModelConfig`.

    Attributes:
        executor: all verbs, on all ranks.
        models: all ranks.
        others: those after the first.
        ranks: what runs them.
    """

    def __init__(
        self,
        count: int,
        model: Any,
        *,
        page_size: int = 16,
        max_rows: int = 64,
        store: TensorStore | None = None,
        **options: Any,
    ) -> None:
        config = ModelConfig(model=str(model), **options)
        bounds, memory = Bounds(page_size=page_size, max_rows=max_rows), dict[int, Any]()

        def shared(model: ReadModel, *_: Any) -> Any:
            widest = model.asks.widest
            return memory.setdefault(widest, np.zeros(memory_bytes(count, widest), np.uint8))

        def load(rank: int, first: Assembled | None = None) -> Assembled:
            pool = None if first is None else first.pool
            return assemble(config, bounds, store, part=RankPart(Ranks(count, rank), shared, pool))

        first = load(0)
        made = [first, *(load(rank, first) for rank in range(1, count))]
        assert len(memory) == 1, "ranks disagree about the widest rows"
        models = [_rank_model(each) for each in made]
        self.models = models
        self.others = [ThreadRank(model) for model in models[1:]]
        self.ranks = ShardedReplay(models[0], first.lm.replay, self.others, first.kept)
        first.lm.use_ranks(self.ranks)
        self.executor = LocalExecutor(first.lm, info=first.plan.info, traits=first.plan.traits)
        self.executor.warmup()
        self.close = self.ranks.close

    def check(self) -> None:
        """Assert that all ranks have computed the same bits in their last step."""
        first, *others = (model.output for model in self.models)
        for other in others:
            assert (first is None) == (other is None)
            for ours, theirs in zip((first or ())[:4], (other or ())[:4], strict=True):  # nothing has `others`
                assert ours.tobytes() == theirs.tobytes(), "the ranks' outputs differ"


def _rank_model(made: Assembled) -> RankModel:
    assert made.exchange is not None
    return RankModel(made.lm.kernels, made.lm.network, made.lm.replay, made.lm.adapted, made.exchange)
