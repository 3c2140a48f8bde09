"""`LocalStepExecutor`: a `DecoderLM` in this process as a `StepExecutor`. Engines run their steps on it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ferrum.cache.page_table import PageTable
from ferrum.contract.model_info import ExecutorTraits, ModelInfo
from ferrum.contract.step_executor import ExecutorState, StepExecutor
from ferrum.core.config import MAX_RUN_AHEAD
from ferrum.core.errors import ConfigError, EngineDead, InvalidTransition, RequestError, Unsupported
from ferrum.core.lora_option import AdapterFacts
from ferrum.core.memory_plan import size
from ferrum.core.option_fields import check_flag, check_number
from ferrum.core.step import PendingStep, Span, StepBatch, StepOutput
from ferrum.core.threads import Pauses
from ferrum.core.values import shown
from ferrum.kernels.operations import F32
from ferrum.runtime.adapters.adapter_slots import PreparedAdapter, in_memory
from ferrum.runtime.decoder_lm import DecoderLM
from ferrum.runtime.kv_tiers.page_tier import DiskTier, PageFiles
from ferrum.runtime.kv_tiers.swap import SwapTier
from ferrum.runtime.memory import free_memory, memory_for, return_free_memory
from ferrum.runtime.step_queue import StepInFlight, StepQueue
from ferrum.sampling.probabilities import top
from ferrum.sources.adapters.adapter_file import AdapterFile

logger: Final = logging.getLogger("ferrum.tokens")

RECENT_SECONDS: Final = 0.1
"""Time after a step in which another one is expected."""


class LocalStepExecutor(StepExecutor):
    """An executor over a language model in this process, with KV tiers and steps in flight.

    Args:
        lm: the language model; its page table is the executor's.
        info, traits: see `StepExecutor`.
        log_tokens: see the property.
        open_adapter: reads the files of an adapter for this model; None: `read_adapter` is refused.
    """

    pages: PageTable

    def __init__(
        self,
        lm: DecoderLM,
        *,
        info: ModelInfo,
        traits: ExecutorTraits,
        log_tokens: bool = False,
        open_adapter: Callable[[str], AdapterFile] | None = None,
    ) -> None:
        super().__init__(info, traits, lm.pages)
        self._lm: DecoderLM | None = lm
        self._steps: StepQueue | None = None
        self._disk: DiskTier | None = None
        self._open_adapter = open_adapter
        self.log_tokens = log_tokens

    @property
    def lm(self) -> DecoderLM:
        """The language model: network, kernels, pages. Raises InvalidTransition after the shutdown, which frees it."""
        if self._lm is None:
            raise InvalidTransition("the executor is shut down, and its memory freed")
        return self._lm

    @property
    def log_tokens(self) -> bool:
        """Whether to log backend, name, position and the five best ids and logits of each span at INFO.

        It can be set at any time (logger `ferrum.tokens`). Raises InvalidTransition after the shutdown.
        """
        return self.lm.watch is not None

    @log_tokens.setter
    def log_tokens(self, on: bool) -> None:
        check_flag("log_tokens", on)
        self.lm.watch = self._log_row if on else None

    def _warm(self) -> None:
        return_free_memory()

    def _close(self) -> None:
        if self._steps is not None:
            self._steps.close()
        self.pages.attach(None)  # breaks reference cycles that would keep the pool alive
        if self._lm is not None and self._lm.ranks is not None:
            self._lm.ranks.close()
        self._lm = self._steps = self._disk = None
        return_free_memory()

    def on_loss(self, call: Callable[[EngineDead], None]) -> None:
        if self.lm.on_loss is not None:
            self.lm.on_loss(call)

    def keep_pages(
        self, *, files: PageFiles | None = None, swap_bytes: int = 0, recompute: Callable[[], float] = float
    ) -> None:
        """Write published pages to files, and evicted ones to host buffers if that pays; see `EngineExecutor`.

        Raises:
            CapacityError: there is not enough memory for the buffers and the pool.
        """
        if files is not None:
            self._disk = DiskTier(self.pages, self.lm.pool, files)
        if swap_bytes:
            with memory_for(f"{size(swap_bytes)} of swapped pages (swap_gib)"):
                pool = self.memory_plan.kv_pool if self.memory_plan.on_device == 0 else 0
                if swap_bytes > free_memory() - pool:  # none of whose pages has been committed yet
                    raise MemoryError
            SwapTier(self.pages, self.lm.pool, swap_bytes, recompute, self._disk)

    # Adapters

    def read_adapter(self, path: str) -> tuple[AdapterFacts, PreparedAdapter]:
        """Read an adapter's files for `load_adapter`, in any thread and while steps run.

        Args:
            path: of a PEFT directory or a GGUF file, or a hub id.

        Raises:
            Unsupported: the model or a tensor of the files cannot be served.
            CheckpointError, ModelNotFound: the files are damaged or missing.
        """
        if self._open_adapter is None:
            raise Unsupported("adapters", "this executor was not loaded from files: use prepare_adapter")
        return self.prepare_adapter(self._open_adapter(path))

    def prepare_adapter(self, file: AdapterFile) -> tuple[AdapterFacts, PreparedAdapter]:
        """Convert what the files of an adapter hold to the backend's form. Raises Unsupported."""
        with self._locked():  # the first adapter allocates the buffers of steps with adapters
            self._finish_steps()
            slots = self.lm.adapters
        prepared = slots.prepare(in_memory(file.changes), Pauses(self._is_stepping))
        facts = AdapterFacts(
            path=file.path,
            digest=file.digest,
            nbytes=prepared.nbytes,
            rank=file.rank,
            scales=prepared.scales,
            invocation=file.invocation,
            about=dict(file.about),
        )
        return facts, prepared

    def _is_stepping(self) -> bool:
        """Return whether a step runs or has just ended."""
        recent = self._last is not None and time.monotonic() - self._last < RECENT_SECONDS
        return recent or self._lifecycle.state is ExecutorState.BUSY

    def load_adapter(self, key: str, adapter: AdapterFile | PreparedAdapter) -> None:
        """Hold an adapter, which spans name by the key. Steps in flight end before.

        Raises:
            RequestError: another adapter has this key.
            Unsupported: the model cannot be changed as the adapter says.
        """
        if key in self.adapter_keys:
            raise RequestError(f"{shown(key)} is loaded already: unload it first", param="adapter")
        prepared = self.prepare_adapter(adapter)[1] if isinstance(adapter, AdapterFile) else adapter
        with self._locked():
            self._finish_steps()
            self.lm.adapters.add(key, prepared)

    def unload_adapter(self, key: str) -> None:
        """Free an adapter. Steps in flight end before; an unknown key is no error."""
        with self._locked():
            self._finish_steps()
            if key in self.adapter_keys:
                self.lm.adapters.remove(key)

    @property
    def adapter_keys(self) -> tuple[str, ...]:
        """The keys of the loaded adapters."""
        return () if self._lm is None or self._lm.adapted.slots is None else self._lm.adapted.slots.keys

    def shutdown(self) -> None:
        if self._disk is not None and not self.in_use:
            self._disk.close()
        super().shutdown()

    def reset(self) -> None:
        with self._locked():
            if self._steps is not None and self._lifecycle.state is ExecutorState.ERROR:
                self._steps.abandon()
            super().reset()
            self.lm.forget()

    def _run(self, batch: StepBatch) -> StepOutput:
        return self.lm.run(batch)

    # Running ahead

    def kv_capacity(self) -> int:
        """Return the number of tokens that fit in the KV pool; 0 after the shutdown."""
        return 0 if self._ended else self.pages.capacity_tokens

    def run_ahead(self, depth: int) -> None:
        """Let `submit` return while up to `depth` earlier steps and its own are in flight; 0 computes at once.

        The named verbs wait for all steps.

        Raises:
            ConfigError: `depth` is not an integer in [0, MAX_RUN_AHEAD], or states are not planned for it.
            ExecutorInUse: an engine holds the lease.
        """
        check_number("depth", depth, 0, MAX_RUN_AHEAD)
        states = self.memory_plan.states
        if states is not None and states.per_sequence < 2 + depth:
            raise ConfigError(
                f"the states are planned for a depth of {states.per_sequence - 2}: load the model with "
                f"run_ahead={depth}",
                param="depth",
            )
        with self._exclusive():
            self.lm.runs_ahead = depth > 0
            self._steps = StepQueue(self.lm, depth) if depth else None

    def _begin(self, batch: StepBatch) -> PendingStep:
        if self._steps is None:
            return super()._begin(batch)
        self._refuse_broken()
        if self._steps.full:
            self._settle_oldest()
        if self._lifecycle.state is ExecutorState.READY:
            self._lifecycle.move(ExecutorState.BUSY)
        self._batch_size = len(batch.spans)
        with self._breaking():
            return self._steps.begin(batch, self._finish)

    def _finish(self, step: StepInFlight) -> None:
        """Settle steps up to this one."""
        with self._locked():
            while step.output is None:
                self._refuse_broken()
                self._settle_oldest()

    def _finish_steps(self) -> None:
        while self._steps is not None and self._steps and self._lifecycle.state is not ExecutorState.ERROR:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        assert self._steps is not None
        with self._breaking():
            step = self._steps.settle_oldest()
        self._last = time.monotonic()
        if not self._steps:
            self._batch_size = 0
            self._lifecycle.move(ExecutorState.READY)
        assert step.output is not None
        self._count(step.batch, step.output)

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Enter the error state if this context is left by an exception: what is in flight is lost."""
        try:
            yield
        except BaseException:
            self._lifecycle.move(ExecutorState.ERROR)
            raise

    def _log_row(self, span: Span, logits: F32) -> None:
        best = top(logits, 5)
        shown = " ".join(f"{token}:{logits[token]:.4f}" for token in best)
        logger.info("%s %s position=%d %s", self.traits.backend, span.cache_id, span.end - 1, shown)
