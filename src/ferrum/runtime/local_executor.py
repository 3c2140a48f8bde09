"""`LocalExecutor`: a `DecoderLM` in this process as a `ModelExecutor`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ferrum.contract.capabilities import ExecutorTraits
from ferrum.contract.executor import ModelExecutor
from ferrum.contract.io_types import ModelInfo
from ferrum.core.errors import RequestError
from ferrum.core.memory_plan import size
from ferrum.core.span_checks import wrong_type
from ferrum.core.step import CARRY, Span, SpanResult, StepBatch, StepOutput
from ferrum.kernels.interface import F32
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.runtime.kv_tiers.page_files import PageFiles
from ferrum.runtime.kv_tiers.page_tier import DiskTier
from ferrum.runtime.kv_tiers.swap import SwapTier
from ferrum.runtime.memory import free_memory, memory_for, return_free_memory
from ferrum.sampling.sampler import check_threshold, count_likely
from ferrum.sampling.top_k import top

logger: Final = logging.getLogger("ferrum.tokens")


class LocalExecutor(ModelExecutor):
    """An executor over a language model in this process, with CARRY tokens and KV tiers.

    Args:
        lm: the language model; its page table is the executor's.
        info, traits: see `NamedVerbs`.
        log_tokens: log backend, position and the five best ids and logits of each span (FERRUM_LOG_TOKENS).
        cache_prefix: see `NamedVerbs`.
    """

    def __init__(
        self,
        lm: DecoderLM,
        *,
        info: ModelInfo,
        traits: ExecutorTraits,
        log_tokens: bool = False,
        cache_prefix: str = "llm-cache",
    ) -> None:
        super().__init__(info, traits, lm.pages, cache_prefix=cache_prefix)
        self.lm = lm
        self._sampled: dict[str, tuple[int, int]] = {}  # last sampled token of each sequence, and its position
        self._disk: DiskTier | None = None
        if log_tokens:
            lm.watch = self._log_row

    def _warm(self) -> None:
        return_free_memory()

    def _close(self) -> None:
        self.lm.pages.attach(None)  # breaks reference cycles that would keep the pool alive

    def use_disk_tier(self, files: PageFiles) -> None:
        """Write published pages to files and restore them from there, until `shutdown`."""
        self._disk = DiskTier(self.lm.pages, self.lm.kernels, files)

    def use_swap_tier(self, capacity: int, recompute: Callable[[], float]) -> None:
        """Keep evicted pages in host buffers of this many bytes, if that pays; see `SwapTier`.

        Raises:
            CapacityError: there is not enough memory for the buffers and the pool.
        """
        with memory_for(f"{size(capacity)} of swapped pages (swap_gib)"):
            if capacity > free_memory() - self.memory_plan.kv_pool:  # none of whose pages has been committed yet
                raise MemoryError
        SwapTier(self.lm.pages, self.lm.kernels, capacity, recompute, self._disk)

    def shutdown(self) -> None:
        if self._disk is not None and not self.in_use:
            self._disk.close()
        super().shutdown()

    def _run(self, batch: StepBatch) -> StepOutput:
        carries = any(map(_carries, batch.spans))
        output = self._run_carried(batch) if carries else self.lm.run(batch)
        self._sampled = {
            span.cache_id: (outcome.tokens[-1], outcome.length)
            for span, outcome in zip(batch.spans, output.results, strict=True)
            if isinstance(outcome, SpanResult) and outcome.tokens
        }
        return output

    def _run_carried(self, batch: StepBatch) -> StepOutput:
        """Run the spans with CARRY replaced; those that cannot have it fail."""
        carried = [self._with_carried(span) for span in batch.spans]
        computed = iter(self.lm.run(StepBatch(tuple(each for each in carried if isinstance(each, Span)))).results)
        return StepOutput(tuple(next(computed) if isinstance(each, Span) else each for each in carried))

    def _with_carried(self, span: Span) -> Span | RequestError:
        """Return the span with the token of its sequence's last step instead of CARRY, also in its history.

        Returns an error if the sequence sampled none, has changed since, or if CARRY is not the first token only.
        """
        if not _carries(span):
            return span
        token, length = self._sampled.get(span.cache_id, (None, None))
        if token is None or span.start != length or span.tokens.index(CARRY) or span.tokens.count(CARRY) > 1:
            return RequestError("must be the first token of a sequence that sampled in the step before", param="CARRY")
        sampling = span.sampling
        if sampling is not None and len(sampling.history) == span.start:
            sampling = replace(sampling, history=[*sampling.history, token])
        return replace(span, tokens=(token, *span.tokens[1:]), sampling=sampling)

    def _check_threshold(self, threshold: object) -> None:
        check_threshold(threshold)

    def _count_accepted(self, logits: F32, drafts: Sequence[int], threshold: float | None) -> int:
        if threshold is None:
            return super()._count_accepted(logits, drafts, threshold)
        return count_likely(logits, drafts, threshold)

    def _log_row(self, span: Span, logits: F32) -> None:
        best = top(logits, 5)
        shown = " ".join(f"{token}:{logits[token]:.4f}" for token in best)
        logger.info("%s %s position=%d %s", self.traits.backend, span.cache_id, span.end - 1, shown)


def _carries(span: Span) -> bool:
    """Whether CARRY is among the tokens; invalid spans are left to `refuse_span`."""
    try:
        return CARRY in span.tokens and wrong_type(span) is None
    except (TypeError, ValueError):  # no sequence, or an array among the tokens
        return False
