"""The executor as an engine sees it: a `LocalStepExecutor`, or one of several ranks or of another machine.

The engine's loop only submits steps, and its host holds the lease. The scheduler reserves pages
in the page table, which is in the engine's process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from ferrum.cache.page_table import PageTable
from ferrum.contract.model_info import ExecutorTraits, ModelInfo
from ferrum.core.errors import EngineDead
from ferrum.core.lora_option import AdapterFacts
from ferrum.core.step import PendingStep, StepBatch

if TYPE_CHECKING:  # numpy is imported in the engine's process only
    from ferrum.runtime.kv_tiers.page_tier import PageFiles


class EngineExecutor(Protocol):
    """What an engine needs of an executor: steps, a lease, the page table, and fixed properties."""

    def submit(self, batch: StepBatch) -> PendingStep:
        """Start a step. Failures are isolated by span; an exception fails all sequences of the step."""

    def lease(self, owner: str) -> AbstractContextManager[object]:
        """Hold the executor for one owner."""

    def shutdown(self) -> None:
        """Release all resources."""

    @property
    def info(self) -> ModelInfo:
        """The model."""

    @property
    def traits(self) -> ExecutorTraits:
        """Its fixed properties. `numerics_id` must name everything that bits depend on; the number of ranks is not."""

    @property
    def pages(self) -> PageTable:
        """The page table, shared with the scheduler. A step makes its pending copies before it writes."""

    def on_loss(self, call: Callable[[EngineDead], None]) -> None:
        """Call with the error, from any thread, when the executor computes nothing more because a rank is lost."""

    def kv_capacity(self) -> int:
        """Return the number of tokens that fit in the KV pool."""

    def keep_pages(
        self, *, files: PageFiles | None = None, swap_bytes: int = 0, recompute: Callable[[], float] = float
    ) -> None:
        """Keep pages outside the pool until `shutdown`.

        Args:
            files: where published pages are written and found again; None: nowhere.
            swap_bytes: size of the host buffers for evicted pages; 0: none.
            recompute: returns the measured seconds to recompute a page; 0 while unknown.

        Raises:
            CapacityError: there is not enough memory for the buffers.
        """

    def read_adapter(self, path: str) -> tuple[AdapterFacts, Any]:
        """Read an adapter's files for `load_adapter`, in any thread and while steps run.

        Raises:
            Unsupported: the model cannot be changed as the files say.
            CheckpointError, ModelNotFound: the files are damaged or missing.
        """

    def load_adapter(self, key: str, adapter: Any) -> None:
        """Hold an adapter that `read_adapter` returned, under a key. Steps in flight end before."""

    def unload_adapter(self, key: str) -> None:
        """Free an adapter that no sequence uses. Steps in flight end before."""

    def run_ahead(self, depth: int) -> None:
        """Let `submit` return while up to `depth` earlier steps and its own are in flight; 0 computes at once."""
