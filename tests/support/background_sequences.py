"""Foreign sequences that join an engine's steps: they grow, fork, are truncated, and keep their bits."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Final

import numpy as np

from ferrum.core.step import Rows, Span, SpanResult, StepBatch, StepOutput, Want
from ferrum.verbs.load_executor import LocalExecutor
from random_requests import VOCABULARY
from schedules import Arithmetic, quiet_executor

LENGTH: Final = 100
TEXTS: Final = 3
MOST: Final = 6
"""Foreign sequences at a time."""


def text_of(seed: int) -> tuple[int, ...]:
    """Return the text of a foreign sequence."""
    pick = Random(seed)
    return tuple(pick.randrange(VOCABULARY) for _ in range(LENGTH))


@cache
def rows_of(arithmetic: Arithmetic, seed: int) -> np.ndarray:
    """Return the logits [LENGTH, V] of a text alone."""
    executor = quiet_executor(arithmetic)
    (result,) = executor.submit(StepBatch((Span("text", 0, text_of(seed), Want.LOGITS, Rows.ALL),))).result().results
    executor.release_cache("text")
    logits: np.ndarray = result.logits
    return logits


class Strangers:
    """Foreign sequences in the steps of an executor.

    Attributes:
        forks_of_forks, cuts: how often a fork was forked, and a sequence went back.
    """

    def __init__(self, executor: LocalExecutor, arithmetic: Arithmetic, count: int, random: Random) -> None:
        self._executor = executor
        self._arithmetic = arithmetic
        self._random = random
        self._seeds = {f"stranger{seed}": seed % TEXTS for seed in range(count)}
        self.forks_of_forks = self.cuts = 0

    def submit(self, batch: StepBatch) -> StepOutput:
        """Run the step with foreign sequences; return the results of the batch only."""
        spans = self._with_room([span for cache_id in self._seeds if (span := self._span(cache_id)) is not None])
        output = self._executor.submit(StepBatch((*batch.spans, *spans))).result()
        for span, result in zip(spans, output.results[len(batch.spans) :], strict=True):
            assert isinstance(result, SpanResult), result
            expected = rows_of(self._arithmetic, self._seeds[span.cache_id])[span.end - 1 :][:1]
            np.testing.assert_array_equal(result.logits, expected, err_msg=f"{span.cache_id} at {span.end}")
        self._disturb()
        return StepOutput(output.results[: len(batch.spans)], output.seconds)

    def leave(self) -> None:
        """Release all pages."""
        for cache_id in self._seeds:
            self._executor.release_cache(cache_id)

    def _span(self, cache_id: str) -> Span | None:
        start = self._length(cache_id)
        if start == LENGTH or self._random.random() < 0.3:
            return None
        tokens = text_of(self._seeds[cache_id])[start : start + self._random.choice((1, 2, 7, 40))]
        return Span(cache_id, start, tokens, Want.LOGITS)

    def _with_room(self, spans: list[Span]) -> list[Span]:
        """Return the spans with enough free pages; the scheduler reserves pages for its own spans only."""
        pages = self._executor.lm.pages
        free = min((pages.free(group.name) for group in pages.groups), default=len(spans) * LENGTH)
        fitting, size = [], pages.page_size
        for span in spans:
            most = -(-span.end // size) - span.start // size + 1  # new pages, and a copy of its last page
            if most <= free:
                free -= most
                fitting.append(span)
        return fitting

    def _length(self, cache_id: str) -> int:
        pages = self._executor.lm.pages
        return pages.length(cache_id) if cache_id in pages else 0

    def _disturb(self) -> None:
        """Fork, truncate or restart one sequence."""
        started = [cache_id for cache_id in self._seeds if self._length(cache_id)]
        if not started or self._random.random() < 0.5:
            return
        cache_id = self._random.choice(started)
        length, pages = self._random.randrange(self._length(cache_id) + 1), self._executor.lm.pages
        if len(self._seeds) < MOST:
            clone = self._executor.fork(self._executor.handle(cache_id))
            self._seeds[clone.cache_id] = self._seeds[cache_id]
            self.forks_of_forks += "clone" in cache_id
        elif pages.can_truncate(cache_id, length):
            self._executor.truncate_kv_for_cache_id(cache_id, length)
            self.cuts += 1
        else:
            self._executor.release_cache(cache_id)
            if "clone" in cache_id:
                del self._seeds[cache_id]
